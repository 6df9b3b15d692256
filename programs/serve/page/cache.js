/* The panel that shows what the server's sessions hold. */
import {$, el, shape, bytes, count} from "./dom.js";

/* Bits of a codec, from its name: "rot3", "k=kivi2", "f16", "int8". */
const bits = codec => {
  const found = /(\d+)/.exec(codec.replace(/latent[\d.]*%?\+?/, ""));
  return found ? +found[1] : 16;
};
const color = codec => {
  const b = bits(codec);
  return `var(--c${b >= 16 ? 16 : b >= 8 ? 8 : b >= 4 ? 4 : b >= 3 ? 3 : b >= 2 ? 2 : 1})`;
};
const titled = (node, text) => {
  node.append(shape("title", {}, text));
  return node;
};

const drawBar = slot => {
  const width = 320, max = Math.max(slot.f16_bytes, slot.cache_bytes, 1);
  const bar = [shape("rect",
    {x: 0, y: 16, width: width * slot.f16_bytes / max, height: 10, rx: 2, fill: "var(--empty)"})];
  let x = 0, sum = 0;
  for (const level of slot.levels) {
    for (const side of ["k", "v"]) {
      const n = level[side + "_bytes"], w = width * n / max;
      sum += n;
      if (w <= 0) continue;
      bar.push(titled(shape("rect", {
        x,
        y: 0,
        width: Math.max(w - (w > 2 ? .6 : 0), .4),
        height: 12,
        fill: color(level[side]),
        opacity: side === "k" ? 1 : .72
      }),
        `${level.name} ${side.toUpperCase()} ${level[side]}: ${bytes(n)}`));
      x += w;
    }
  }
  const rest = width * Math.max(slot.cache_bytes - sum, 0) / max;
  if (rest > .3)
    bar.push(titled(shape("rect", {x, y: 0, width: rest, height: 12, fill: "var(--line)"}),
      `statistics and tables: ${bytes(slot.cache_bytes - sum)}`));
  $("bar").replaceChildren(...bar);
};

const drawAges = slot => {
  const width = 300, left = 20, min = 5, nodes = [];
  ["k", "v"].forEach((side, row) => {
    const y = row * 28, total = slot.levels.reduce((n, level) => n + level[side + "_rows"], 0) || 1;
    nodes.push(shape("text", {x: 0, y: y + 16}, side.toUpperCase()));
    nodes.push(shape("rect", {x: left, y, width, height: 22, rx: 3, fill: "var(--empty)"}));
    /* Every level gets a minimum width, so that levels with few rows stay visible. */
    const shown = slot.levels.filter(level => level[side + "_rows"] > 0),
          free = width - min * shown.length;
    let x = left;
    for (const level of shown) {
      const rows = level[side + "_rows"], w = min + free * rows / total;
      nodes.push(
        titled(shape("rect",
                 {x, y, width: Math.max(w - 1, 1), height: 22, rx: 2, fill: color(level[side])}),
          `${level.name}: ${count(rows)} tokens, ${side.toUpperCase()} in ${level[side]}`));
      if (w > 46)
        nodes.push(shape(
          "text", {x: x + w / 2, y: y + 15, "text-anchor": "middle", class: "on"}, level[side]));
      x += w;
    }
  });
  $("ages").replaceChildren(...nodes);
};

const drawLevels = slot => {
  const head = el(
    "tr", {}, ...["Level", "Codec", "Tokens", "Bytes"].map(name => el("th", {scope: "col"}, name)));
  const rows = slot.levels.map(level => {
    const key = el("span", {className: "key"});
    key.style.background = color(level.k);
    return el("tr", {}, el("td", {}, level.name),
      el("td", {}, key, level.k === level.v ? level.k : `K ${level.k}, V ${level.v}`),
      el("td", {}, count(Math.max(level.k_rows, level.v_rows))),
      el("td", {}, bytes(level.k_bytes + level.v_bytes)));
  });
  $("levels").replaceChildren($("levels").caption, el("thead", {}, head), el("tbody", {}, ...rows));
  $("levels").hidden = rows.length === 0;
};

/* The size in a few words, a hint, and whether tokens are packed. Rows are packed in blocks, and
 * the newest tokens stay exact: a short text takes as much as in f16, or a little more. */
export const sizeNote = slot => {
  const ratio = slot.f16_bytes / slot.cache_bytes;
  const packed = slot.levels.some(
    level => level.k_rows > 0 && bits(level.k) < 16 || level.v_rows > 0 && bits(level.v) < 16);
  if (packed && ratio >= 1) return [ratio.toFixed(1) + " times smaller", "", true];
  if (slot.levels.length === 1 && !packed) return ["exact", "", false];
  if (packed)
    return [
      "not smaller yet", "Few tokens are packed so far, and memory is taken in whole blocks.", true
    ];
  return [
    "exact so far", `Nothing to pack yet: the newest ${count(slot.n_tok)} tokens stay exact.`, false
  ];
};

/* Show a session; null: there is none, and `note` says why. `rate`: tokens per second of the last
 * answer. */
export const drawSlot = (slot, rate, note) => {
  const none = !slot || !slot.n_tok;
  $("f-bytes").textContent = none ? "–" : bytes(slot.cache_bytes);
  $("f-f16").textContent = none ? "–" : bytes(slot.f16_bytes);
  const speed = slot?.tokens_per_second || rate,
        [ratio, text, packed] = none ? ["", note || "", false] : sizeNote(slot);
  $("f-bits").textContent = packed ? slot.bits_per_value.toFixed(2) : none ? "–" : "16, exact";
  if (speed)
    $("f-speed").replaceChildren(speed.toFixed(1), el("small", {}, " tokens/s"));
  else
    $("f-speed").textContent = "–";
  $("ratio").textContent = ratio;
  $("cache-note").textContent = text;
  $("ntok").textContent = none ? "" : count(slot.n_tok) + " tokens";
  const shown = none ? {cache_bytes: 0, f16_bytes: 0, levels: []} : slot;
  drawBar(shown);
  drawAges(shown);
  drawLevels(shown);
};

export const drawAll = state => {
  const device = state.device;
  $("allbytes").textContent = `${bytes(state.bytes)} of ${bytes(state.max_bytes)}` +
    (device ? `; ${bytes(device.bytes)} on ${device.name} (${device.n_layer} layers)` : "");
  $("waiting").textContent = state.waiting ? `${state.waiting} waiting` : "";
  $("all").replaceChildren(
    shape("rect", {width: 320, height: 8, rx: 4, fill: "var(--empty)"}), shape("rect", {
      width: Math.min(320, 320 * state.bytes / state.max_bytes),
      height: 8,
      rx: 4,
      fill: "var(--accent)"
    }));
  $("others").replaceChildren(
    ...state.slots.slice()
      .sort((a, b) => a.id - b.id)
      .map(slot => el("li", {},
             `${slot.id}  ${slot.kv}, ${count(slot.n_tok)} tokens, ${bytes(slot.cache_bytes)}, ${
               slot.state}` +
               (slot.state === "decoding" ? ` ${slot.tokens_per_second.toFixed(1)}/s` : ""))));
};

/* The session of a conversation. While an answer runs it is the busy one with the same prompt;
 * afterwards the one with as many tokens. `tokens`: {kv, prompt, total} of the newest answer. */
export const findSlot = (slots, tokens, running) => {
  if (!tokens) return null;
  const same = slots.filter(slot => slot.kv === tokens.kv && !slot.prefix);
  if (running)
    return same.find(slot => slot.state !== "idle" && slot.n_prompt === tokens.prompt) || null;
  return same.find(slot => Math.abs(slot.n_tok - tokens.total) <= 1) || null;
};
