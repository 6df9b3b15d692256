/* The page's script without a browser: usage: node page_check.js PAGE (see test_page.sh). Elements are stubs that take
 * everything; what is looked at is what the page sends. */
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const script = page.slice(page.indexOf("<script>") + "<script>".length, page.indexOf("</script>"));

const stub = () => {
  const own = {value: "", handlers: {}};
  own.addEventListener = (type, handler) => { own.handlers[type] = handler; };
  own.click = () => own.handlers.click();
  return new Proxy(() => {}, {
    get: (_, key) => key === Symbol.toPrimitive ? () => "" : key === Symbol.iterator ? undefined : key in own ? own[key] : (own[key] = stub()),
    set: (_, key, value) => { own[key] = value; return true; },
    has: () => true,
    apply: () => stub(),
  });
};
const nodes = {};
const document = stub(), memory = {getItem: () => null, setItem: () => {}};
document.getElementById = id => nodes[id] ||= stub();
document.hidden = false;

/* Answers begin, and end when they are aborted. */
const asked = [];
const answer = signal => {
  const parts = ['data: {"choices": [{"delta": {"content": "partial"}}]}\n\n'];
  const read = () => parts.length ? Promise.resolve({value: parts.shift(), done: false}) : new Promise((_, fail) => {
    const abort = () => fail(Object.assign(new Error("aborted"), {name: "AbortError"}));
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort);
  });
  return {ok: true, body: {pipeThrough: () => ({getReader: () => ({read})})}};
};
const fetch = async (path, options) => {
  if (path !== "/v1/chat/completions") return {ok: false, statusText: "not here", json: async () => ({})};
  asked.push(JSON.parse(options.body).messages);
  return answer(options.signal);
};
const pause = () => new Promise(done => setImmediate(done));
const say = async text => {
  nodes.message.value = text;
  nodes.ask.handlers.submit({preventDefault() {}});
  for (let i = 0; i < 20; i++) await pause();
};
const expect = (what, got, wanted) => {
  if (JSON.stringify(got) === JSON.stringify(wanted)) return;
  console.log(`FAILED: ${what}: ${JSON.stringify(got)}, expected ${JSON.stringify(wanted)}`);
  process.exitCode = 1;
};
const user = content => ({role: "user", content}), assistant = content => ({role: "assistant", content});

(async () => {
  new Function("document", "fetch", "localStorage", "sessionStorage", "matchMedia", "TextDecoderStream", "setTimeout", "clearTimeout", script)(
    document, fetch, memory, memory, () => ({matches: false}), class {}, () => 0, () => {});
  await say("one");
  await say(""); /* the button now stops the answer */
  await say("two");
  expect("a stopped answer stays in its conversation", asked[1], [user("one"), assistant("partial"), user("two")]);
  nodes.new.click();
  for (let i = 0; i < 20; i++) await pause();
  await say("three");
  expect("a new conversation begins with nothing", asked[2], [user("three")]);
})();
