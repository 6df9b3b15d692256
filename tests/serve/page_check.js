/* Runs the page's script without a browser. usage: node page_check.js PAGE (see test_page.sh).
 * Elements are stubs that accept everything. The requests that the page sends are checked. */
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const script = page.slice(page.indexOf("<script>") + "<script>".length,
                          page.indexOf("</script>"));

const stub = () => {
  const own = {value: "", handlers: {}};
  own.addEventListener = (type, handler) => { own.handlers[type] = handler; };
  own.click = () => own.handlers.click();
  return new Proxy(() => {}, {
    get: (_, key) => {
      if (key === Symbol.toPrimitive) return () => "";
      if (key === Symbol.iterator) return undefined;
      return key in own ? own[key] : (own[key] = stub());
    },
    set: (_, key, value) => { own[key] = value; return true; },
    has: () => true,
    apply: () => stub(),
  });
};
const nodes = {};
const document = stub(), storage = {getItem: () => null, setItem: () => {}};
document.getElementById = id => nodes[id] ||= stub();
document.hidden = false;

/* Every answer starts with "partial", and ends when it is aborted. */
const requests = [];
const streamAnswer = signal => {
  const parts = ['data: {"choices": [{"delta": {"content": "partial"}}]}\n\n'];
  const untilAborted = () => new Promise((_, fail) => {
    const abort = () => fail(Object.assign(new Error("aborted"), {name: "AbortError"}));
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort);
  });
  const read = () =>
    parts.length ? Promise.resolve({value: parts.shift(), done: false}) : untilAborted();
  return {ok: true, body: {pipeThrough: () => ({getReader: () => ({read})})}};
};
const fetch = async (path, options) => {
  if (path !== "/v1/chat/completions")
    return {ok: false, statusText: "not here", json: async () => ({})};
  requests.push(JSON.parse(options.body).messages);
  return streamAnswer(options.signal);
};
const pause = () => new Promise(done => setImmediate(done));
const settle = async () => { for (let i = 0; i < 20; i++) await pause(); };
const submit = async text => {
  nodes.message.value = text;
  nodes.ask.handlers.submit({preventDefault() {}});
  await settle();
};
const expect = (what, got, expected) => {
  if (JSON.stringify(got) === JSON.stringify(expected)) return;
  console.log(`FAILED: ${what}: ${JSON.stringify(got)}, expected ${JSON.stringify(expected)}`);
  process.exitCode = 1;
};
const user = content => ({role: "user", content});
const assistant = content => ({role: "assistant", content});

(async () => {
  new Function("document", "fetch", "localStorage", "sessionStorage", "matchMedia",
               "TextDecoderStream", "setTimeout", "clearTimeout", script)(
    document, fetch, storage, storage, () => ({matches: false}), class {}, () => 0, () => {});
  await submit("one");
  await submit(""); /* now the button stops the answer */
  await submit("two");
  expect("a stopped answer stays in its conversation", requests[1],
         [user("one"), assistant("partial"), user("two")]);
  nodes.new.click();
  await settle();
  await submit("three");
  expect("a new conversation starts empty", requests[2], [user("three")]);
})();
