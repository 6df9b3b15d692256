/* The message field: text, attached files, and how many tokens they take. */
import {$, el, bytes, count, showText} from "./dom.js";
import {countTokens} from "./api.js";

const MAX_FILE = 4 << 20, MAX_FILES = 16, LONG = 2000;
const OVERHEAD = 16; /* tokens of the chat template around a message */

/* The text of a file. Throws what a user can do about it. */
const readFile = async file => {
  if (file.size > MAX_FILE)
    throw new Error(`${file.name} has ${bytes(file.size)}; the limit is ${bytes(MAX_FILE)}.`);
  let text;
  try {
    text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text file in UTF-8. Save it as plain text first.`);
  }
  if (text.includes("\0"))
    throw new Error(`${file.name} is a binary file. Only text can be attached.`);
  if (!text.trim()) throw new Error(`${file.name} is empty.`);
  return text;
};

export class Composer {
  /* `send(text, files)` returns false if the message was not taken; `stop()`; `used()`: tokens of
   * the conversation so far; `limit()`: tokens of the context. */
  constructor(callbacks) {
    Object.assign(this, callbacks);
    this.files = [];
    this.text_tokens = 0;
    this.busy = false;
    this.draft_name = "";
    this.#listen();
  }

  get text() { return $("message").value; }
  set text(text) {
    $("message").value = text;
    this.fit();
    this.#measureText();
  }

  #listen() {
    const field = $("message");
    $("ask").addEventListener("submit", event => {
      event.preventDefault();
      this.#submit();
    });
    field.addEventListener("input", () => {
      this.fit();
      this.#saveDraft();
      this.#measureText();
    });
    field.addEventListener("keydown", event => {
      const is_touch = matchMedia("(pointer: coarse)").matches; /* there Enter starts a new line */
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || is_touch) return;
      event.preventDefault();
      if (!this.busy) this.#submit();
    });
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => {
      this.attach([...$("file").files]);
      $("file").value = "";
    });
    field.addEventListener("paste", event => {
      const files = [...event.clipboardData.files];
      if (files.length) {
        event.preventDefault();
        this.attach(files);
      }
    });
    const chat = $("chat"), has_files = event => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", event => {
      if (!has_files(event)) return;
      event.preventDefault(); /* a file that misses the chat must not replace the page */
      chat.classList.add("drop");
    });
    addEventListener("dragleave", event => {
      if (!event.relatedTarget) chat.classList.remove("drop");
    });
    addEventListener("drop", event => {
      if (!has_files(event)) return;
      event.preventDefault();
      chat.classList.remove("drop");
      this.attach([...event.dataTransfer.files]);
    });
  }

  fit() {
    const field = $("message");
    field.style.height = "auto";
    field.style.height = field.scrollHeight + 2 + "px";
  }

  /* ---- files ---- */

  async attach(files) {
    showText($("ask-problem"), "");
    for (const file of files) {
      try {
        if (this.files.length >= MAX_FILES)
          throw new Error(`At most ${MAX_FILES} files can be attached.`);
        const attached = {name: file.name, text: await readFile(file), n_tok: 0};
        this.files.push(attached);
        this.#drawFiles();
        attached.n_tok = await this.#count(attached.text);
      } catch (error) { showText($("ask-problem"), error.message); }
    }
    this.#drawFiles();
  }

  /* An estimate, if the server cannot say. */
  async #count(text) {
    try {
      return await countTokens(text, $("modelid").value || undefined);
    } catch { return Math.ceil(text.length / 3.5); }
  }

  #drawFiles() {
    $("files").replaceChildren(...this.files.map(
      (file, i) => el("li", {}, file.name,
        el("small", {},
          bytes(new Blob([file.text]).size) + (file.n_tok ? `, ${count(file.n_tok)} tokens` : "")),
        el("button", {
          type: "button",
          textContent: "×",
          ariaLabel: `Remove ${file.name}`,
          onclick: () => {
            this.files.splice(i, 1);
            this.#drawFiles();
            $("message").focus();
          }
        }))));
    this.showCount();
  }

  /* ---- tokens ---- */

  #measureText() {
    clearTimeout(this.timer);
    const text = this.text;
    this.text_tokens = Math.ceil(text.length / 3.5);
    this.showCount();
    if (text.length <= LONG) return;
    this.timer = setTimeout(async () => {
      const n = await this.#count(text);
      if (this.text === text) {
        this.text_tokens = n;
        this.showCount();
      }
    }, 300);
  }

  needed() {
    return this.used() + this.text_tokens + this.files.reduce((sum, file) => sum + file.n_tok, 0) +
      OVERHEAD;
  }

  /* Counts are shown when they matter. */
  showCount() {
    const needed = this.needed(), limit = this.limit(), over = limit && needed > limit;
    const matters = this.files.length || this.text.length > LONG || needed > 0.75 * limit;
    $("ask-count").textContent = limit && matters ?
      `about ${count(needed)} of ${count(limit)} tokens with this conversation` :
      "";
    $("ask-count").classList.toggle("over", Boolean(over));
  }

  /* ---- drafts: the text stays until it is sent, also after a reload ---- */

  openDraft(id) {
    this.draft_name = "lowkey-draft-" + id;
    this.text = localStorage.getItem(this.draft_name) || "";
  }
  #saveDraft() {
    try {
      if (this.text)
        localStorage.setItem(this.draft_name, this.text);
      else
        localStorage.removeItem(this.draft_name);
    } catch { /* the browser's limit for a very long text */
    }
  }

  /* ---- sending ---- */

  #submit() {
    if (this.busy) {
      this.stop();
      return;
    }
    const text = this.text.trim(), needed = this.needed(), limit = this.limit();
    if (!text && !this.files.length) return;
    if (limit && needed > limit) {
      showText($("ask-problem"),
        `This needs about ${count(needed)} tokens, but the server's context has ${count(limit)}. ` +
          "Shorten it, start a new conversation, or start the server with a larger context (-c).");
      return;
    }
    showText($("ask-problem"), "");
    if (!this.send(text, this.files)) return;
    this.files = [];
    this.text = "";
    this.#saveDraft();
    this.#drawFiles();
  }

  setBusy(busy) {
    this.busy = busy;
    $("send").textContent = busy ? "Stop" : "Send";
    $("send").title = busy ? "Stop the answer (Esc)" : "";
    $("send").classList.toggle("main", !busy);
  }
}

/* What the model gets: the files, then the text. The same document with another question has the
 * same beginning, so the server can reuse its cache. */
export const contentOf = message =>
  (message.files || [])
    .map(file => `File ${file.name}:\n\n${file.text}\n\nEnd of file ${file.name}.\n\n`)
    .join("") +
  message.text;
