#!/usr/bin/env python3
"""Uses the web page in Chromium, with a server that runs a tiny model.

usage: page_check.py PROGRAM [FOLDER [NAME...]]    only the checks NAME, if any is given;
                                                   screenshots go to FOLDER

The model is random, so a grammar that permits one text decides what it answers. Each check is a
function check_NAME(page); checks run one after the other in a new profile of the browser, each in a
new tab.
"""
import json
import os
import signal
import sys
import tempfile
import traceback

import browser
import tiny_model
from serve_process import Server

# Remembers the last request for an answer, and adds the fields of `extra` to it. While `deaf` is
# set, the page does not notice other tabs.
HOOK = """(() => {
  window.BroadcastChannel = class extends BroadcastChannel {
    set onmessage(handler) { super.onmessage = event => window.deaf || handler(event); }
  };
  const original = window.fetch;
  window.fetch = (path, options) => {
    if (path === "v1/chat/completions") {
      const body = JSON.parse(options.body);
      window.sent = JSON.parse(options.body);
      options = {...options, body: JSON.stringify({...body, ...window.extra})};
    }
    return original(path, options);
  };
})();"""

HOSTILE = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2">

[link](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>)

<svg onload="window.hacked = 5"></svg><iframe src="https://example.org/"></iframe>

![pixel](https://example.org/pixel.png) [shown](https://example.org/ "title")
"""
MARKDOWN = """# Title

Some **bold**, *soft* text and `a < b`.

| a | b | c |
|:--|--:|---|
| 1 | 2 | """ + "wide " * 40 + """|

1. one
2. two
   - nested

> quote

```c
int main(void) { return """ + "0 + " * 60 + """0; }
```
"""


class Failure(Exception):
    pass


def expect(what, got, expected=True):
    if got != expected:
        raise Failure(f"{what}: {got!r}, expected {expected!r}")


class Page:
    """A tab with the page, and what every check does."""
    READY = "document.getElementById('kv').options.length > 3"

    def __init__(self, chromium, server, **options):
        self.chromium, self.server, self.options = chromium, server, options
        self.tab = self.open()

    def open(self, path=""):
        tab = self.chromium.open(f"http://127.0.0.1:{self.server.port}/{path}", script=HOOK,
                                 **self.options)
        tab.wait(self.READY)
        return tab

    def answer_with(self, text):
        extra = {"grammar": "root ::= " + json.dumps(text)} if text else {}
        self.tab.run(f"window.extra = {json.dumps(extra)}")

    def wait_idle(self):
        self.tab.wait("document.getElementById('send').textContent === 'Send'")

    def send(self, text, answer=None):
        """Send a message and wait for the end of its answer, which is `answer`."""
        self.answer_with(answer)
        self.tab.fill("#message", text)
        self.tab.click("#send")
        self.wait_idle()

    def texts(self):
        return self.tab.run("[...document.querySelectorAll('.turn .text')].map(n => "
                            "n.innerText.trim())")

    def sent(self):
        """Role and content of the last request's messages."""
        return self.tab.run("window.sent.messages.map(m => [m.role, m.content])")

    def press(self, turn, name):
        """Press a button of the message number `turn`."""
        self.tab.click(f".turn:nth-of-type({turn + 1}) .{name}")

    def has_marked(self):
        """Was the program built with the library for Markdown?"""
        return self.tab.run("typeof marked") != "undefined"

    def wait_for(self, condition):
        """Wait until condition() is true."""
        for _ in range(20 * browser.WAIT_S):
            if condition():
                return
            self.tab.run("new Promise(done => setTimeout(done, 50))")
        raise Failure("a condition did not become true")

    def wait_saved(self, n):
        """Wait until the browser keeps the conversation with n messages."""
        self.wait_for(lambda: self.tab.run("""new Promise(done => {
          const opened = indexedDB.open("lowkey");
          opened.onsuccess = () => {
            const bodies = opened.result.transaction("body").objectStore("body");
            const found = bodies.get(location.hash.slice(1));
            found.onsuccess = () => { opened.result.close(); done(found.result?.messages.length); };
          };
        })""") == n)

    def count(self, selector):
        return self.tab.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def wait_count(self, selector, n):
        self.tab.wait(f"document.querySelectorAll({json.dumps(selector)}).length === {n}")

    def text(self, selector):
        return self.tab.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def width_overflow(self):
        return self.tab.run("document.documentElement.scrollWidth - innerWidth")


# ---- checks ----

def check_reload_keeps_the_conversation(page):
    page.tab.fill("#system", "Be brief.")
    page.send("first question", "first answer")
    expect("the system prompt is sent",
           page.sent(), [["system", "Be brief."], ["user", "first question"]])
    page.tab.reload()
    page.wait_count(".turn", 2)
    expect("texts after a reload", page.texts(), ["first question", "first answer"])
    page.tab.wait("document.getElementById('system').value === 'Be brief.'")
    page.send("second question", "second answer")
    expect("the history is sent", page.sent()[1:],
           [["user", "first question"], ["assistant", "first answer"], ["user", "second question"]])
    note = page.text(".turn:last-child .note")
    expect(f"the note names reused tokens: {note}", "reused from memory" in note)


def check_stop_and_new(page):
    page.answer_with(None)
    page.tab.fill("#message", "one")
    page.tab.click("#send")
    page.tab.wait("document.querySelector('.turn.assistant .text').innerText.length > 20")
    page.tab.press("Escape", 27)
    page.wait_idle()
    page.send("two", "second")
    roles = [role for role, _ in page.sent()]
    expect("a stopped answer stays in its conversation", roles, ["user", "assistant", "user"])
    page.tab.click("#new")
    page.tab.wait("document.getElementById('empty') !== null")
    page.send("three", "third")
    expect("a new conversation starts empty", page.sent(), [["user", "three"]])


def check_hostile_answer(page):
    page.send("attack", HOSTILE)
    expect("script of an answer", page.tab.run("window.hacked ?? null"), None)
    unsafe = page.count(".turn :is(script, img, iframe, object, svg, [onerror], [onload])")
    expect("elements that run or load", unsafe, 0)
    links = page.tab.run("[...document.querySelectorAll('.turn a')].map(a => [a.href, "
                         "a.rel.includes('noopener')])")
    if page.has_marked():
        expect("links",
               links, [["https://example.org/pixel.png", True], ["https://example.org/", True]])
    expect("the HTML is shown", "<script>" in page.texts()[1])
    expect("errors before the next line, which is one", page.tab.errors, [])
    expect("text cannot become HTML",
           page.tab.run("(() => { try { document.createElement('p').innerHTML = '<b>'; return "
                        "false } catch { return true } })()"))
    page.tab.run("1")  # events before this reply have arrived
    page.tab.errors.clear()


def check_markdown(page):
    page.send("show", MARKDOWN)
    if not page.has_marked():
        expect("code without marked", page.count(".code"), 1)
        return
    shown = page.tab.run("['h3', 'strong', 'em', 'code', '.table td', 'ol > li > ul > li', "
                         "'blockquote', '.code code']"
                         ".map(s => document.querySelectorAll('.turn.assistant .text ' + s).length "
                         "> 0)")
    expect("elements of Markdown", shown, [True] * 8)
    expect("inline code", page.text(".text p code"), "a < b")
    expect("sideways scroll of the page", page.width_overflow() <= 0)
    expect("the table scrolls in its own box", page.tab.run(
        "[...document.querySelectorAll('.table, .code pre')].every(n => "
        "n.getBoundingClientRect().right <= innerWidth)"))


def check_streamed_markdown(page):
    """Drawing the text piece by piece gives the same elements as drawing it at once."""
    text = MARKDOWN + "\n\n- a\n\n- b\n\nlast *words*\n\n" + MARKDOWN
    same = page.tab.run(f"""import("/page/markdown.js").then(({{MarkdownView}}) => {{
      const text = {json.dumps(text)};
      const at_once = document.createElement("div"), streamed = document.createElement("div");
      new MarkdownView(at_once).update(text, true);
      const view = new MarkdownView(streamed);
      for (let n = 1; n < text.length; n += 3) view.update(text.slice(0, n), false);
      const closed = view.n_closed;
      view.update(text, true);
      return [streamed.innerHTML === at_once.innerHTML, closed];
    }})""")
    expect("same elements", same[0])
    if page.has_marked():
        expect("finished blocks are not drawn again", same[1] > 3)


def check_edit_retry_delete_copy(page):
    page.send("first", "one")
    page.send("second", "two")
    page.answer_with("another two")
    page.press(3, "retry")
    page.wait_idle()
    expect("after a retry", page.texts(), ["first", "one", "second", "another two"])
    page.answer_with("new one")
    page.press(0, "edit")
    page.tab.fill(".editor textarea", "first, edited")
    page.tab.click(".editor .save")
    page.wait_idle()
    expect("an edited message starts a branch", page.texts(), ["first, edited", "new one"])
    page.tab.click("#toast button")
    page.wait_count(".turn", 4)
    expect("undo brings the former messages back",
           page.texts(), ["first", "one", "second", "another two"])
    page.press(2, "delete")
    page.wait_count(".turn", 2)
    page.wait_saved(2)
    clipboard = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.chromium.call("Browser.grantPermissions", {"permissions": clipboard})
    page.press(1, "copy")
    page.tab.wait("document.querySelectorAll('.turn')[1].querySelector('.copy').textContent === "
                  "'Copied'")
    page.tab.reload()
    page.wait_count(".turn", 2)


def check_attach(page):
    folder = page.chromium.directory
    files = {"notes.txt": "A note with ümlauts.\n" * 20, "binary.bin": b"\x7fELF\0\1\2\xff",
             "more.md": "# more"}
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
    page.tab.set_files("#file", [os.path.join(folder, name) for name in files])
    page.tab.wait("document.querySelectorAll('#files li').length === 2 && "
                  "/tokens/.test(document.querySelector('#files li small').textContent)")
    problem = page.tab.wait("document.getElementById('ask-problem').textContent")
    expect(f"a binary file is refused: {problem}", "binary.bin" in problem and "UTF-8" in problem)
    page.send("what is in it?", "notes")
    content = page.sent()[0][1]
    expect("files come before the text",
           files["notes.txt"] in content and content.endswith("what is in it?"))
    expect("chips of the message", page.count(".turn.user .chips li"), 2)
    expect("chips of the field", page.count("#files li"), 0)


def check_drop_and_paste(page):
    page.tab.run("""(() => {
      const data = name => {
        const transfer = new DataTransfer();
        transfer.items.add(new File(["text of " + name], name));
        return transfer;
      };
      const options = {bubbles: true, cancelable: true};
      const drop = new DragEvent("drop", {...options, dataTransfer: data("dropped.txt")});
      document.getElementById("log").dispatchEvent(drop);
      const paste = new ClipboardEvent("paste", {...options, clipboardData: data("pasted.txt")});
      document.getElementById("message").dispatchEvent(paste);
      window.prevented = drop.defaultPrevented && paste.defaultPrevented;
    })()""")
    page.wait_count("#files li", 2)
    expect("the browser does not open the files", page.tab.run("window.prevented"))
    page.tab.click("#files button")
    expect("after removing one",
           page.tab.run("document.querySelector('#files li').textContent.startsWith('pasted.txt')"))


def check_too_long(page):
    page.tab.fill("#message", "word " * 40000)
    page.tab.click("#send")
    problem = page.tab.wait("document.getElementById('ask-problem').textContent")
    expect(f"a text longer than the context is refused: {problem}", "context has 16,384" in problem)
    expect("the text stays",
           page.tab.run("document.getElementById('message').value.length"), 200000)
    page.tab.fill("#message", "")


def check_long_text_is_folded(page):
    text = "a long text " * 300
    page.send(text, "short")
    shown = len(page.texts()[0])
    expect(f"{shown} characters shown", shown < 1000)
    page.tab.click(".fold")
    expect("shown after a click", len(page.texts()[0]) >= len(text.strip()))


def check_draft(page):
    page.tab.fill("#message", "half a sentence")
    page.tab.reload()
    page.tab.wait("document.getElementById('message').value === 'half a sentence'")
    page.tab.fill("#message", "")


def check_numbers(page):
    page.send("defaults", "ok")
    fields = page.tab.run("[window.sent.temperature ?? null, window.sent.max_tokens ?? null]")
    expect("empty numbers are not sent", fields, [None, None])
    page.tab.fill("#temperature", "9")
    expect("an invalid number is marked",
           page.tab.run("document.getElementById('temperature').ariaInvalid"), "true")
    page.tab.fill("#message", "more")
    page.tab.click("#send")
    expect("nothing is sent", len(page.texts()), 2)
    page.tab.fill("#temperature", "0.5")
    page.send("more", "ok")
    expect("the number is sent", page.tab.run("window.sent.temperature"), 0.5)
    page.tab.fill("#temperature", "")


def check_continue_after_a_cut(page):
    page.tab.fill("#max", "4")
    page.send("tell", "one two three four five six")
    first = page.texts()[1]
    expect("the answer is cut", "Cut at the limit" in page.text(".turn:last-child .note"))
    page.tab.fill("#max", "")
    page.answer_with(" and the rest")
    page.press(1, "continue")
    page.wait_idle()
    sent = [[role, content.strip()] for role, content in page.sent()]
    expect("the partial answer is the last message", sent, [["user", "tell"], ["assistant", first]])
    expect("one answer", page.texts()[1].split(), (first + " and the rest").split())
    expect("Continue is gone", page.count(".continue"), 0)
    page.tab.fill("#max", "")


def check_recipes(page):
    groups = page.tab.run("[...document.querySelectorAll('#kv optgroup')].map(g => [g.label, "
                          "[...g.children].map(o => o.value)])")
    expect("groups of recipes", dict(groups), {
        "Exact": ["f16"],
        "Nearly exact": ["best-4", "selective"],
        "Small loss": ["best-3", "trellis-3", "kivi-4", "atom-4", "hqq-4", "kvquant-3", "kvarn-k4v2"],
        "Large loss": ["best-2", "trellis-2", "trellis-1.5", "kivi-2", "hqq-2"],
        "Forgets parts of the text": ["compressed", "lambda", "streaming", "h2o", "tova"]})
    page.tab.fill("#kv", "best-2")
    expect("a note and a folded text", page.tab.run(
        "[document.getElementById('kvtext').textContent.length > 10, document.getElementById('kvfold').open, "
        "document.getElementById('kvcode').textContent, document.getElementById('kvallow').hidden]"),
        [True, False, "sink 4: f16; body: rot2; window 32: rot8", True])
    page.tab.fill("#kv", "best-3")
    page.send("hello", "hi")
    page.tab.wait("/^Nothing to pack yet: the newest \\d+ tokens stay "
                  "exact.$/.test(document.getElementById('cache-note').textContent)")
    page.tab.fill("#kv", "f16")
    change = page.text("#kvchange")
    expect(f"a change is announced: {change}", "will be read again" in change)
    page.tab.fill("#kv", "best-3")


def check_two_tabs(page):
    page.send("shared", "one")
    other = page.open(page.tab.run("location.hash"))
    other.wait("document.querySelectorAll('.turn').length === 2")
    page.send("more", "two")
    other.wait("document.querySelectorAll('.turn').length === 4")
    # The second tab does not notice the first one: nothing is lost, it continues a copy.
    other.run("window.deaf = true")
    page.send("from the first tab", "first")
    page.wait_saved(6)
    other.run("window.extra = " + json.dumps({"grammar": 'root ::= "second"'}))
    other.fill("#message", "from the second tab")
    other.click("#send")
    other.wait("document.querySelector('.turn:last-child .note')?.textContent"
               ".includes('generated')")
    page.tab.wait("[...document.querySelectorAll('#conversations .open')].some(b => b.textContent "
                  "=== 'shared (copy)')")
    expect("two conversations", page.tab.run("location.hash") != other.run("location.hash"))
    for tab in (page.tab, other):
        tab.reload()
        tab.wait("document.querySelectorAll('.turn').length === 6")
    last = "document.querySelector('.turn:last-child .text').innerText"
    answers = {tab.run(last) for tab in (page.tab, other)}
    expect("both answers are kept",
           answers, {"first", "second"})
    expect("errors of the other tab", other.errors, [])
    other.close()


def check_interrupted_answer(page):
    """A reload in the middle of an answer keeps what came, and it can be continued."""
    page.answer_with(None)
    page.tab.fill("#message", "tell me a lot")
    page.tab.click("#send")
    page.tab.wait("document.querySelector('.turn.assistant .text').innerText.length > 20")
    page.tab.reload()
    page.wait_count(".turn", 2)
    page.tab.wait("document.querySelector('.turn.assistant .note').textContent.includes("
                  "'the page was closed')")
    expect("the text that came", len(page.texts()[1]) > 0)
    expect("Continue is there",
           page.tab.run("document.querySelector('.turn.assistant .continue') !== null"))


def check_other_fields(page):
    page.tab.fill("#other", "{top_p: 1}")
    expect("not JSON", page.tab.run("document.getElementById('other').ariaInvalid"), "true")
    page.tab.fill("#other", '{"top_p": 0.5}')
    page.send("hi", "hello")
    expect("the field is sent", page.tab.run("window.sent.top_p"), 0.5)


def check_keyboard(page):
    """Everything that a mouse can do has a button that gets the focus with Tab."""
    page.tab.run("document.getElementById('message').focus()")
    page.answer_with("typed answer")
    page.tab.call("Input.insertText", {"text": "typed"})
    if page.options.get("touch"):
        page.tab.click("#send")
    else:
        page.tab.press("Enter", 13)
    page.tab.wait("document.querySelector('.turn.assistant "
                  ".note')?.textContent.includes('generated')")
    unreachable = page.tab.run("[...document.querySelectorAll('button, select, input, textarea, "
                               "summary')].filter(n => n.tabIndex < 0).length")
    expect("controls without focus", unreachable, 0)
    nameless = page.tab.run("[...document.querySelectorAll('button')].filter(b => !(b.ariaLabel || "
                            "b.innerText || b.textContent).trim()).length")
    expect("buttons without a name", nameless, 0)
    expect("the answer is announced", page.text("#spoken"), "typed answer")
    page.tab.press("n", 78, 1)
    page.tab.wait("document.getElementById('empty') !== null")


def check_list(page):
    page.send("the elephant question", "grey")
    page.tab.click("#new")
    page.send("another", "answer")
    page.tab.fill("#search", "grey")
    page.wait_count("#conversations .open", 1)
    page.tab.click("#conversations .open")
    page.tab.wait("document.querySelector('.turn.assistant')?.innerText.includes('grey')")
    page.tab.click("#conversations .menu")
    page.tab.fill("#manage-name", "Elephants")
    page.tab.click("#manage button[value=rename]")
    page.tab.wait("document.querySelector('#conversations .open').textContent === 'Elephants'")
    page.tab.click("#conversations .menu")
    page.tab.click("#manage button[value=json]")
    path = os.path.join(page.chromium.downloads, "Elephants.json")
    page.wait_for(lambda: os.path.exists(path))
    page.tab.click("#conversations .menu")
    page.tab.click("#manage button[value=delete]")
    page.tab.wait("document.getElementById('confirm').open")
    page.tab.click("#confirm-yes")
    page.tab.wait("document.querySelector('#conversations .none') !== null")
    page.tab.set_files("#import-file", [path])
    page.tab.wait("document.querySelector('#conversations .open')?.textContent === 'Elephants'")
    page.tab.fill("#search", "")


def check_phone_settings(page):
    """On a phone the settings are one tap away, and what can be tapped is large enough."""
    page.send("hi", "hello")
    if page.tab.run("innerWidth") > 500:
        expect("settings are always shown",
               page.tab.run("document.getElementById('kv').checkVisibility()"))
        return
    expect("the button's name",
           page.tab.run("document.getElementById('show-panel').innerText"), "Settings")
    page.tab.click("#show-panel")
    expect("settings are shown",
           page.tab.run("document.getElementById('kv').checkVisibility() && "
                        "document.getElementById('kv').getBoundingClientRect().top < 300"))
    expect("the system prompt is a text area",
           page.tab.run("document.getElementById('system').tagName"), "TEXTAREA")
    page.tab.click("#show-panel")
    small = page.tab.run("[...document.querySelectorAll('button')].filter(b => "
                         "b.checkVisibility({visibilityProperty: true}))"
                         ".map(b => [b.textContent, b.getBoundingClientRect()])"
                         ".filter(([, r]) => r.height < 43.5 || r.width < 43.5).map(([text]) => "
                         "text)")
    expect("buttons smaller than 44 px", small, [])


def check_killed_server(page):
    """The partial answer stays, the reason is apart, and Retry works when the server is back."""
    server = page.server
    page.answer_with(None)
    page.tab.fill("#message", "tell me everything")
    page.tab.click("#send")
    page.tab.wait("document.querySelector('.turn.assistant .text').innerText.length > 20")
    server.stop(signal.SIGKILL)
    page.tab.wait("document.querySelector('.turn.assistant "
                  ".problem:not([hidden])')?.innerText.includes('connection')")
    expect("Retry can be seen",
           page.tab.run("document.querySelector('.problem .retry').getBoundingClientRect().bottom "
                        "<= document.getElementById('log').getBoundingClientRect().bottom"))
    expect("the partial answer is kept", len(page.texts()[1]) > 20)
    expect("the reason is not in the answer", "connection" not in page.texts()[1])
    page.tab.wait("!document.getElementById('offline').hidden")
    page.tab.fill("#message", "typed meanwhile")
    server.options += ["--port", str(server.port)]
    server.start()
    page.tab.wait("document.getElementById('offline').hidden")
    expect("typed text",
           page.tab.run("document.getElementById('message').value"), "typed meanwhile")
    page.answer_with("all of it")
    page.tab.click(".turn.assistant .problem .retry")
    page.wait_idle()
    expect("after the retry", page.texts()[1], "all of it")
    page.tab.errors.clear()  # the browser reports each request that failed
    page.tab.fill("#message", "")


# ---- several models ----

class ModelsPage(Page):
    READY = "document.getElementById('modelid').options.length === 2"


def models_are_chosen(page):
    names = page.tab.run("[...document.getElementById('modelid').options].map(o => o.value)")
    expect("the menu", [names, page.tab.run("document.getElementById('modelfield').hidden")],
           [["tiny", "other"], False])
    expect("not loaded", page.text("#model").endswith(", not loaded"))
    page.tab.fill("#modelid", "other")
    page.send("hello", "hi")
    expect("the model of the request", page.tab.run("window.sent.model"), "other")
    page.tab.wait("document.getElementById('kv').options.length > 3")  # its recipes are known now
    expect("the chosen model", page.text("#model").startswith("other, "))
    page.tab.fill("#modelid", "tiny")
    page.send("again", "ho")
    expect("the other one", page.tab.run("window.sent.model"), "tiny")
    expect("answers", page.texts()[1::2], ["hi", "ho"])


# ---- running them ----

def run_check(chromium, server, name, check, options, folder, kind=Page):
    page = kind(chromium, server, **options)
    try:
        check(page)
        expect("sideways scroll", page.width_overflow() <= 0)
        expect("errors of the browser", page.tab.errors, [])
        origin = f"http://127.0.0.1:{server.port}/"
        own = (origin, "blob:", "data:")
        foreign = [url for url in page.tab.requests if not url.startswith(own)]
        expect("requests to other servers", foreign, [])
    finally:
        page.tab.run("localStorage.clear()")  # settings of the next conversation
        if folder:
            theme = "dark" if options["dark"] else "light"
            page.tab.screenshot(os.path.join(folder, f"{name}-{options['width']}-{theme}.png"))
        page.tab.close()


def main():
    program, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    wanted = sys.argv[3:]
    chromium_path = browser.find_browser()
    if not chromium_path:
        print("skipped: neither Chromium nor Chrome is installed")
        return 77
    checks = {name[len("check_"):]: function for name, function in globals().items()
              if name.startswith("check_") and (not wanted or name[len("check_"):] in wanted)}
    layouts = [{"width": 1280, "height": 860, "dark": False},
               {"width": 390, "height": 844, "dark": True, "touch": True}]
    n_failed = 0
    with tempfile.TemporaryDirectory() as directory:
        options = ["-t", "1", "--kv", "best-3", "--allow-kv", "presets"]
        with Server(program, options, directory=directory) as server:
            for layout in layouts:
                with browser.Browser(chromium_path) as chromium:
                    for name, check in checks.items():
                        try:
                            run_check(chromium, server, name, check, layout, folder)
                        except (Failure, browser.BrowserError):
                            n_failed += 1
                            print(f"FAILED: {name} at {layout['width']} px: "
                                  f"{traceback.format_exc(limit=-1)}", flush=True)
        more = os.path.join(directory, "more")
        os.mkdir(more)
        tiny_model.write_model(os.path.join(more, "other.gguf"), seed=2)
        if not wanted or "models" in wanted:
            with Server(program, [*options, "--models", more], directory=directory) as server, \
                    browser.Browser(chromium_path) as chromium:
                try:
                    run_check(chromium, server, "models", models_are_chosen, layouts[0], folder, ModelsPage)
                except (Failure, browser.BrowserError):
                    n_failed += 1
                    print(f"FAILED: models: {traceback.format_exc(limit=-1)}", flush=True)
    print(f"{len(checks) * len(layouts)} checks, {n_failed} failed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
