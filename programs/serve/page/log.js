/* The messages of a conversation, each with its buttons. */
import {$, el, bytes, count, copyButton} from "./dom.js";
import {MarkdownView} from "./markdown.js";

const FOLD = 2000, FOLDED = 600; /* characters: longer texts of the user are folded to this */

const chip = file => {
  const pre = el("pre", {tabIndex: 0});
  const size =
    `${bytes(new Blob([file.text]).size)}${file.n_tok ? `, ${count(file.n_tok)} tokens` : ""}`;
  return el("li", {},
    el("details", {ontoggle() { pre.textContent = file.text; }},
      el("summary", {}, file.name + " ", el("small", {}, size)), pre));
};

/* The user's text, folded if it is long. */
const showFolded = (node, text) => {
  if (text.length <= FOLD) {
    node.textContent = text;
    return;
  }
  const draw = open => {
    const fold = el("button", {
      className: "fold",
      type: "button",
      ariaExpanded: String(open),
      textContent: open ? "Show less" : `Show all (${count(text.length)} characters)`,
      onclick() {
        draw(!open);
        node.querySelector(".fold").focus({preventScroll: true});
      },
    });
    node.replaceChildren(open ? text : text.slice(0, FOLDED) + " …", fold);
  };
  draw(false);
};

/* The thoughts of an answer are folded, its text is Markdown. Answers that were saved by older
 * versions have their thoughts as "<think>...</think>" at the start of the text. */
const splitThoughts = ({text, thoughts = ""}) => {
  const found = !thoughts && /^\s*<think>([^]*?)(?:<\/think>\s*|$)/.exec(text);
  return found ? [found[1].trim(), text.slice(found[0].length)] : [thoughts, text];
};

const isNearEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;

class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.is_user = message.role === "user";
    this.text = el("div", {className: "text"});
    this.files = el("ul", {className: "chips"}, ...(message.files || []).map(chip));
    this.problem = el("div", {className: "problem", role: "alert", hidden: true});
    this.note = el("div", {className: "note"});
    this.buttons = el("div", {className: "actions"});
    this.node = el("article", {className: "turn " + message.role},
      el("h2", {}, this.is_user ? "You" : "Model"), this.files, this.text, this.problem, this.note,
      this.buttons);
    this.markdown = null;
    this.timer = 0;
    this.cost = 0;
    this.update(true);
  }

  /* Show the message as it is now. While its text grows, drawing takes a bounded share of the
   * time. */
  update(done) {
    clearTimeout(this.timer);
    this.timer = 0;
    if (!done) {
      this.timer = setTimeout(() => this.#draw(false), Math.max(30, 6 * this.cost));
      return;
    }
    this.#draw(true);
    this.#drawProblem();
    this.#drawButtons();
  }
  schedule() {
    if (!this.timer) this.update(false);
  }

  #draw(done) {
    const start = performance.now(), log = $("log");
    const follow = !done && isNearEnd();
    this.timer = 0;
    if (this.is_user)
      showFolded(this.text, this.message.text);
    else
      this.#drawAnswer(done);
    this.note.textContent = this.message.note || "";
    if (follow) log.scrollTop = log.scrollHeight;
    this.cost = performance.now() - start;
  }

  #drawAnswer(done) {
    const [thoughts, answer] = splitThoughts(this.message);
    const running = this.actions.isRunning(this.message);
    this.text.classList.toggle("waiting", running && !answer);
    if (!this.markdown) {
      this.thoughts = el("details", {className: "think", hidden: true},
        el("summary", {}, "Thoughts"), el("div", {className: "plain"}));
      const body = el("div");
      this.text.replaceChildren(this.thoughts, body);
      this.markdown = new MarkdownView(body);
    }
    this.thoughts.hidden = !thoughts;
    this.thoughts.lastElementChild.textContent = thoughts;
    this.markdown.update(answer, done);
  }

  #drawProblem() {
    this.problem.hidden = !this.message.error;
    if (!this.message.error) return;
    this.problem.replaceChildren(this.message.error, el("div", {className: "row"}, el("button", {
      type: "button",
      className: "retry",
      textContent: "Retry",
      onclick: () => this.actions.retry(this.message)
    })));
  }

  #drawButtons() {
    const button = (name, title, onclick) => el(
      "button", {type: "button", className: name.toLowerCase(), textContent: name, title, onclick});
    const {message, actions} = this;
    const copy = copyButton(() => message.text);
    copy.classList.add("copy");
    const buttons = [
      copy,
      button("Edit", this.is_user ? "Edit and send again" : "Edit this answer", () => this.edit())
    ];
    if (this.is_user)
      buttons.push(button("Answer", "Answer this message", () => actions.retry(message)));
    else if (!message.error)
      buttons.push(button("Retry", "Answer again", () => actions.retry(message)));
    buttons.push(
      button("Delete", "Delete this message and the ones after it", () => actions.remove(message)));
    if (message.cut && message.text)
      buttons.unshift(button("Continue", "Continue the answer", () => actions.resume(message)));
    this.buttons.replaceChildren(...buttons);
  }

  edit() {
    const {message, actions} = this;
    const area = el("textarea", {
      value: message.text,
      ariaLabel: "Edit the message",
      rows: Math.min(12, message.text.split("\n").length + 1)
    });
    const close = () => {
      editor.replaceWith(this.text);
      this.buttons.hidden = false;
      this.buttons.querySelector(".edit")?.focus();
    };
    const save = () => {
      close();
      actions.edit(message, area.value);
    };
    const editor = el("div", {className: "editor"}, area,
      el("div", {className: "row"}, el("button", {
        type: "button",
        className: "main save",
        textContent: this.is_user ? "Send" : "Save",
        onclick: save
      }),
        el("button", {type: "button", textContent: "Cancel", onclick: close})));
    area.addEventListener("keydown", event => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.text.replaceWith(editor);
    this.buttons.hidden = true;
    area.focus();
  }
}

export class Log {
  /* `actions`: what the buttons do: retry, edit, remove, resume; and isRunning(message). */
  constructor(actions) {
    this.actions = actions;
    this.views = new Map();
    $("log").addEventListener("scroll", () => this.showJump());
    $("jump").addEventListener("click", () => {
      this.scrollToEnd();
      $("message").focus();
    });
  }

  show(messages) {
    this.views.clear();
    $("log").replaceChildren();
    for (const message of messages) this.#append(message);
    if (messages.length === 0)
      $("log").append(el("div", {id: "empty"}, el("b", {}, "Start a conversation."),
        "It stays in this browser. Attach text files with +, or drop them here."));
    this.scrollToEnd();
  }

  add(message) {
    $("empty")?.remove();
    this.#append(message);
    this.scrollToEnd();
  }
  #append(message) {
    const view = new MessageView(message, this.actions);
    this.views.set(message, view);
    $("log").append(view.node);
  }

  /* These do nothing for messages of conversations that are not shown. */
  grow(message) { this.views.get(message)?.schedule(); }
  update(message) {
    const follow = isNearEnd();
    this.views.get(message)?.update(true);
    if (follow) this.scrollToEnd();
  }
  setNote(message, text) {
    const view = this.views.get(message);
    if (view) view.note.textContent = text;
  }

  setBusy(busy) { $("log").classList.toggle("busy", busy); }
  /* The button to the end is shown if the end is not. */
  showJump() { $("jump").hidden = isNearEnd(); }
  scrollToEnd() { $("log").scrollTop = $("log").scrollHeight; }
}

/* Screen readers get the whole answer once, when it is complete. */
export const speak = text => {
  $("spoken").textContent = text.slice(0, 4000);
};

/* A short message with an optional Undo. */
let toastTimer = 0;
export const toast = (text, undo) => {
  clearTimeout(toastTimer);
  const [label, button] = $("toast").children;
  label.textContent = text;
  button.hidden = !undo;
  button.onclick = () => {
    $("toast").hidden = true;
    undo();
  };
  $("toast").hidden = false;
  toastTimer = setTimeout(() => {
    $("toast").hidden = true;
  }, undo ? 10000 : 4000);
};

/* The progress of a prefill, as a share; 1 hides it. */
export const setProgress = share => {
  $("progress").firstElementChild.style.width = share < 1 ? 100 * share + "%" : "0";
  $("progress").setAttribute("aria-valuenow", Math.round(100 * Math.min(share, 1)));
};
