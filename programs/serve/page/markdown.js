/* Markdown as elements. The library marked splits the text into tokens; this file makes elements of
 * them, of the kinds below and no others. No text is ever parsed as HTML, so an answer can contain
 * neither scripts nor anything that loads by itself: HTML is shown as text, an image as a link. */
import {el, copyButton} from "./dom.js";

const library = globalThis.marked;
const MAX_TEXT = 1 << 20; /* longer texts are shown as they are */
const MAX_DEPTH = 24;     /* of lists and quotes */
const N_OPEN = 4;         /* last tokens of a streamed text, which the next words may change */

export const hasMarkdown = Boolean(library);

/* ---- tokens ---- */

/* Without the library: code between fences, everything else as it is. */
const splitFences = text =>
  text.split(/^(```.*\n[^]*?(?:\n```[ \t]*(?:\n|$)|$(?![^])))/m).filter(Boolean).map(raw => {
    const fence = /^```(.*)\n([^]*)$/.exec(raw);
    if (!fence) return {type: "plain", raw, text: raw.replace(/^\n+|\n+$/g, "")};
    return {type: "code", raw, lang: fence[1], text: fence[2].replace(/\n?```[ \t]*\n?$/, "")};
  });

const tokenize = text => {
  if (text.length > MAX_TEXT) return [{type: "plain", raw: text, text}];
  if (!library) return splitFences(text);
  try {
    return library.lexer(text, {gfm: true, breaks: true});
  } catch { /* its recursion is too deep for the stack */
    return [{type: "plain", raw: text, text}];
  }
};

/* marked escapes texts for HTML. */
const NAMED = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  copy: "\u00a9",
  deg: "\u00b0",
  times: "\u00d7",
  middot: "\u00b7",
  ndash: "\u2013",
  mdash: "\u2014",
  hellip: "\u2026",
  rarr: "\u2192",
  le: "\u2264",
  ge: "\u2265"
};
const unescape = text => text.replace(/&(?:#(\d{1,6})|#x([\da-f]{1,5})|(\w{2,8}));/gi,
  (all, decimal, hex, name) =>
    name ? NAMED[name] ?? all : String.fromCodePoint(decimal ? +decimal : parseInt(hex, 16)));

/* ---- elements ---- */

const link = (href, title, children) => {
  const url = /^(https?:|mailto:)/i.test(href) && URL.canParse(href) ? href : "";
  if (!url) return [...children, ` (${href})`];
  return [el("a",
    {href: url, title: title || url, target: "_blank", rel: "noopener noreferrer nofollow"},
    ...children)];
};

const inline = (tokens, depth) => tokens.flatMap(token => {
  if (depth > MAX_DEPTH) return [token.raw];
  const inner = () => inline(token.tokens || [], depth + 1);
  switch (token.type) {
    case "strong": return [el("strong", {}, ...inner())];
    case "em": return [el("em", {}, ...inner())];
    case "del": return [el("del", {}, ...inner())];
    case "codespan": return [el("code", {}, unescape(token.text))];
    case "br": return [el("br")];
    case "link": return link(unescape(token.href || ""), token.title, inner());
    case "image":
      return link(
        unescape(token.href || ""), "", [`Image: ${unescape(token.text) || "no description"}`]);
    case "html": return [/^<br\s*\/?>$/i.test(token.raw) ? el("br") : token.raw];
    default: return token.tokens ? inner() : [unescape(token.text ?? token.raw)];
  }
});

const code = token => {
  const text = el("code", {}, token.text);
  return el("div", {className: "code"},
    el("div", {}, el("span", {}, (token.lang || "").split(/\s/)[0]),
      copyButton(() => text.textContent)),
    el("pre", {tabIndex: 0}, text));
};

const table = (token, depth) => {
  const row = (cells, name) => el("tr", {},
    ...cells.map(
      (cell, i) => el(name, {className: token.align[i] || ""}, ...inline(cell.tokens, depth + 1))));
  return el("div", {className: "table", tabIndex: 0},
    el("table", {}, el("thead", {}, row(token.header, "th")),
      el("tbody", {}, ...token.rows.map(cells => row(cells, "td")))));
};

const list = (token, depth) => {
  const items = token.items.map(item => {
    const children = blocks(item.tokens, depth + 1);
    if (!item.task) return el("li", {}, ...children);
    const box = el("input", {type: "checkbox", checked: item.checked, disabled: true});
    return el("li", {className: "task"}, box, ...children);
  });
  return token.ordered ? el("ol", {start: Number(token.start) || 1}, ...items) :
                         el("ul", {}, ...items);
};

/* The element of a block; null for white space and definitions of links. */
const block = (token, depth) => {
  if (depth > MAX_DEPTH) return el("div", {className: "plain"}, token.raw);
  switch (token.type) {
    case "space":
    case "def": return null;
    case "code": return code(token);
    case "heading":
      return el("h" + Math.min(token.depth + 2, 6), {}, ...inline(token.tokens, depth));
    case "hr": return el("hr");
    case "blockquote": return el("blockquote", {}, ...blocks(token.tokens, depth + 1));
    case "list": return list(token, depth);
    case "table": return table(token, depth);
    case "paragraph": return el("p", {}, ...inline(token.tokens, depth));
    case "text":
      return el(
        "span", {}, ...(token.tokens ? inline(token.tokens, depth) : [unescape(token.text)]));
    default:
      return el("div", {className: "plain"}, token.type === "plain" ? token.text : token.raw);
  }
};
const blocks = (tokens, depth) => tokens.map(token => block(token, depth)).filter(Boolean);

/* Shows a text that grows. Blocks that cannot change any more are neither parsed nor drawn again,
 * so the cost of a long answer does not grow with its square. */
export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.shown = [];   /* {raw, type, node} of the blocks in `node` */
    this.n_closed = 0; /* blocks that are finished */
    this.at = 0;       /* where the text after them starts */
  }

  /* `done`: the text is complete. It is then parsed as a whole; equal blocks stay in place. */
  update(text, done) {
    if (done) this.n_closed = this.at = 0;
    const tokens = tokenize(text.slice(this.at));
    let i = this.n_closed;
    for (const token of tokens) {
      const old = this.shown[i];
      if (old && old.raw === token.raw && old.type === token.type) {
        i++;
        continue;
      }
      const node = block(token, 0);
      if (!node) continue;
      if (old)
        old.node.replaceWith(node);
      else
        this.node.append(node);
      this.shown[i++] = {raw: token.raw, type: token.type, node};
    }
    for (const old of this.shown.splice(i)) old.node.remove();
    if (!done) this.#close(text, tokens.slice(0, -N_OPEN));
  }

  #close(text, tokens) {
    for (const token of tokens) {
      if (!text.startsWith(token.raw, this.at)) return; /* marked changed its white space */
      this.at += token.raw.length;
      const shown = this.shown[this.n_closed];
      if (shown && shown.raw === token.raw && token.type !== "space" && token.type !== "def")
        this.n_closed++;
    }
  }
}
