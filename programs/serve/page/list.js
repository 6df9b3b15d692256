/* The list of conversations: search, rename, export, import, delete. */
import {$, el, bytes, download} from "./dom.js";
import {exportJson, exportText, importJson, MAX_BYTES} from "./store.js";
import {toast} from "./log.js";

const MAX_IMPORT = 64 << 20;

/* Ask a question with a dialog. Resolves to the value of the button, "" if it was cancelled. */
const ask = dialog => new Promise(resolve => {
  dialog.returnValue = "";
  dialog.onclose = () => resolve(dialog.returnValue);
  dialog.showModal();
});
const confirmDelete = async text => {
  $("confirm-text").textContent = text;
  return await ask($("confirm")) === "yes";
};
const fileName = title =>
  (title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation");

export class List {
  /* `open(id)`: show a conversation. `removed(id)`: it was deleted; id "": all were.
   * `renamed(id, title)` saves a name. */
  constructor(store, callbacks) {
    this.store = store;
    Object.assign(this, callbacks);
    this.current = "";
    $("search").addEventListener("input", () => this.draw());
    $("export").addEventListener("click", () => this.#exportAll());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.#import());
    $("clear").addEventListener("click", () => this.#clear());
  }

  async draw(current = this.current) {
    this.current = current;
    const wanted = $("search").value.trim(), entries = await this.store.list();
    const found = wanted ? await this.store.search(wanted) : null;
    if (wanted !== $("search").value.trim()) return; /* a later call draws */
    const shown = entries.filter(entry => !found || found.has(entry.id));
    $("conversations").replaceChildren(...shown.map(entry => this.#item(entry)));
    if (!shown.length)
      $("conversations")
        .append(el("li", {className: "none"}, wanted ? "Nothing found." : "No conversations yet."));
    $("kept").textContent = this.store.problem ||
      `${entries.length} in this browser, ${bytes(this.store.total)} of at most ${
        bytes(MAX_BYTES)}`;
    $("export").disabled = $("clear").disabled = entries.length === 0;
  }

  #item(entry) {
    const open = el("button", {
      className: "open",
      type: "button",
      textContent: entry.title,
      title: `${entry.title}\n${new Date(entry.changed).toLocaleString()}, ${bytes(entry.bytes)}`,
      onclick: () => this.open(entry.id)
    });
    if (entry.id === this.current) open.setAttribute("aria-current", "true");
    return el("li", {}, open, el("button", {
      className: "menu",
      type: "button",
      textContent: "⋯",
      ariaLabel: `Rename, export or delete ${entry.title}`,
      onclick: () => this.#manage(entry)
    }));
  }

  async #manage(entry) {
    $("manage-name").value = entry.title;
    const choice = await ask($("manage")), name = $("manage-name").value.trim();
    if (choice === "rename" && name) await this.renamed(entry.id, name);
    if (choice === "json" || choice === "text") {
      const conversation = await this.store.load(entry.id);
      if (choice === "json")
        download(fileName(entry.title) + ".json", "application/json", exportJson([conversation]));
      else
        download(fileName(entry.title) + ".txt", "text/plain", exportText(conversation));
    }
    if (choice === "delete" && await confirmDelete(`Delete “${entry.title}”?`)) {
      await this.store.remove(entry.id);
      this.removed(entry.id);
    }
    this.draw();
  }

  async #exportAll() {
    const all = [];
    for (const entry of await this.store.list()) all.push(await this.store.load(entry.id));
    download("lowkey-conversations.json", "application/json", exportJson(all));
  }

  async #import() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    if (!file) return;
    try {
      if (file.size > MAX_IMPORT)
        throw new Error(`the file has ${bytes(file.size)}; the limit is ${bytes(MAX_IMPORT)}`);
      const conversations = importJson(await file.text());
      for (const conversation of conversations) await this.store.save(conversation);
      toast(`${conversations.length} imported.`);
    } catch (error) { toast(`Not imported: ${error.message}.`); }
    this.draw();
  }

  async #clear() {
    const entries = await this.store.list();
    if (!await confirmDelete(
          `Delete all ${entries.length} conversations of this browser? This cannot be undone.`))
      return;
    await this.store.clear();
    this.removed("");
    this.draw();
  }
}
