/* Making elements, and numbers as text. */
export const $ = id => document.getElementById(id);

/* el("a", {href, onclick}, child, ...): an element. Strings become text, never markup. */
export const el = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in node)
      node[key] = value;
    else
      node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};

/* The same for SVG. */
export const shape = (name, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

export const bytes = n => {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  while (n >= 1023.95 && i < 3) {
    n /= 1024;
    i++;
  }
  return (i === 0 || n >= 99.95 ? n.toFixed(0) : n.toPrecision(3)) + " " + units[i];
};
export const count = n => n.toLocaleString("en-US");

/* Show a text in an element that is hidden without one. */
export const showText = (node, text) => {
  node.textContent = text || "";
  node.hidden = !text;
};

/* The clipboard's interface needs a secure context: https, or this machine. */
export const copyText = async text => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", {value: text, className: "skip"});
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser does not allow copying");
};

/* A button that copies `text()` and says so. */
export const copyButton = text => el("button", {
  type: "button",
  textContent: "Copy",
  async onclick(event) {
    const button = event.currentTarget;
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch { button.textContent = "Not copied"; }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  },
});

/* Save a file with this text. */
export const download = (name, type, text) => {
  const url = URL.createObjectURL(new Blob([text], {type}));
  el("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
