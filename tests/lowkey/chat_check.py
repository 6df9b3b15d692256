#!/usr/bin/env python3
"""Checks of `lowkey chat`: usage: chat_check.py LOWKEY FOLDER [CHECK...]

What the chat took as messages is read from the conversation that --session keeps, FILE.chat.
"""
import json
import os
import signal
import stat
import subprocess
import sys
import traceback

from chat_terminal import (ALT_ENTER, CTRL_C, CTRL_D, ENTER, PASTE_END, PASTE_START, TAB, UP, Chat,
                           Failure)
import tiny_model

BIN, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MODEL = os.path.join(FOLDER, "tiny.gguf")
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def equal(found, expected, what):
    if found != expected:
        raise Failure(f"{what}: {str(found)[:300]!r}, expected {str(expected)[:300]!r}")


def path(name):
    return os.path.join(FOLDER, name)


def command(*options):
    return [BIN, "chat", "-m", MODEL, "-t", "1", "--ignore-eos", *options]


def environment(**changes):
    base = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    base |= {"TERM": "xterm", "LOWKEY_HISTORY": "", "LC_ALL": "C.UTF-8"}
    return base | changes


class chat:
    """with chat("--greedy") as c: a chat at its first prompt."""

    def __init__(self, *options, **changes):
        self.chat = Chat(command("--verbose", *options), environment(**changes), FOLDER)

    def __enter__(self):
        self.chat.prompt()
        return self.chat

    def __exit__(self, *_):
        self.chat.close()


def piped(text, *options, status=0, program=None):
    """The answers to messages from a pipe, and stderr."""
    result = subprocess.run(program or command("--json", *options), input=text.encode(), cwd=FOLDER,
                            env=environment(), capture_output=True, timeout=120, check=False)
    equal(result.returncode, status, f"status of {options} with {result.stderr[-300:]}")
    return [json.loads(line)["content"] for line in result.stdout.splitlines()
            if b'"content"' in line], result.stderr.decode()


def conversation(name):
    with open(path(name + ".chat"), encoding="utf-8") as file:
        return json.load(file)


def questions(name):
    return [m["content"] for m in conversation(name)["messages"] if m["role"] == "user"]


def answers(name):
    return [m["content"] for m in conversation(name)["messages"] if m["role"] == "assistant"]


# ---- messages ----

@check
def a_paste_is_one_message():
    with chat("-n", "4", "--session", "paste") as c:
        c.ask(b"before ", PASTE_START, b"one\rtwo\n\tthr\xc3\xa9\xe6\xbc\xa2", PASTE_END, b" after")
        equal(questions("paste"), ["before one\ntwo\n\tthr\u00e9\u6f22 after"], "short paste")
        text = "".join(f"line {i}\n" for i in range(300))
        c.ask(PASTE_START, text.replace("\n", "\r").encode(), PASTE_END, b"What is this?")
        equal(questions("paste")[1:], [text + "What is this?"], "long paste")
        if b"[paste 1: 300 lines, " not in c.out or b"line 250" in c.out:
            raise Failure("the long paste is not folded")
        # Backspace removes the whole paste.
        c.ask(PASTE_START, text.encode(), PASTE_END, b"\x7f", b"gone")
        equal(questions("paste")[2:], ["gone"], "paste and backspace")


@check
def lines_are_joined():
    with chat("-n", "4", "--session", "lines") as c:
        c.send(b'"""first', ENTER)
        c.expect(rb"\. ")
        c.send(b"/help", ENTER)
        c.expect(rb"\. ")
        c.ask(b'last"""')
        c.send(b"one \\", ENTER)
        c.expect(rb"\. ")
        c.ask(b"two")
        c.ask(b"three", ALT_ENTER, b"four")
        c.ask(b"/usr/bin is a folder?")
    equal(questions("lines"), ["first\n/help\nlast", "one \ntwo", "three\nfour",
                               "/usr/bin is a folder?"], "joined lines")
    piped('"""a\nb\n"""\nc \\\nd\n', "-n", "4", "--session", "pipe")
    equal(questions("pipe"), ["a\nb", "c \nd"], "joined lines from a pipe")
    _, errors = piped('"""a\nb\n', "-n", "4", "--session", "open")
    if 'ended inside of """' not in errors:
        raise Failure(f"no word about an open block: {errors}")


@check
def nothing_is_lost_during_an_answer():
    long_word = "LONG" * (tiny_model.LONG_TOKEN // 4)
    text = "".join(f"{long_word}{i}\n" for i in range(340))
    with chat("--session", "ahead", "--greedy") as c:
        c.send(b"go", ENTER)
        c.expect(rb"go\r\n.{20}", "the start of an answer")
        c.send(PASTE_START, text.encode(), PASTE_END, b" and", ENTER, b"more", ENTER)
        c.send(CTRL_C)
        c.expect(rb"stopped; /continue", "the end of the answer after Ctrl-C")
        c.expect(rb"\[paste 1: 340 lines.*more", "what was pasted, at the prompt")
        equal(questions("ahead"), ["go"], "questions before Enter")
        c.send(ENTER)
        c.expect(rb"\r\n.{20}", "the start of an answer")
        c.send(CTRL_C)
        c.answered()
    equal(len(text) > 200000, True, "length of the paste")
    equal(questions("ahead"), ["go", text + " and\nmore"], "pasted during an answer")


@check
def too_long_a_message_is_refused():
    with chat("-n", "4", "-c", "300", "--session", "small") as c:
        c.ask(b"hello")
        c.send(PASTE_START, b"a b c " * 500, PASTE_END, ENTER)
        c.expect(rb"context full: the conversation would have [\d,]+ tokens, the context has 300")
        c.prompt()
        c.send(PASTE_START, b"a b c\n" * 1000000, PASTE_END, ENTER)
        c.expect(rb"longer than the context of 300 tokens")
        c.prompt()
        c.ask(b"still here")
    equal(questions("small"), ["hello", "still here"], "questions")


@check
def the_oldest_turns_leave_a_full_context():
    said = []
    with chat("-n", "4", "-c", "300", "--system", "Be brief.", "--session", "turns") as c:
        for i in range(12):
            said.append(f"{i} a b c a b c a b c")
            c.ask(said[-1].encode())
        equal(b" messages no longer fit the context of 300 tokens and were left out" in c.out, True, "the note")
    left = questions("turns")
    equal(left, said[-len(left):], "the newest questions")
    equal(0 < len(left) < len(said), True, "some left")
    equal(conversation("turns")["messages"][0]["role"], "system", "the first message")


# ---- leaving ----

@check
def ctrl_c_at_the_prompt():
    with chat("-n", "4", "--session", "ctrlc") as c:
        during = c.modes_now()
        c.send(b"some text", CTRL_C)
        c.expect(rb"\n.*> ", "a new prompt")
        c.send(CTRL_C)
        c.expect(rb"press Ctrl-C again or Ctrl-D to leave.*> ")
        c.ask(b"hello")  # anything else forgets the first Ctrl-C
        c.send(CTRL_C)
        c.expect(rb"press Ctrl-C again.*> ")
        c.send(CTRL_C)
        equal(c.wait(), 0, "status after Ctrl-C twice")
        equal(c.modes_now(), c.modes, "terminal modes")
        equal(during != c.modes, True, "modes during the chat differ")
        equal(c.out.rstrip(b"\r\n").endswith(b"\x1b[?2004l"), True, "bracketed paste is off")
    equal(questions("ctrlc"), ["hello"], "questions")


@check
def modes_are_restored():
    for end, status in ((CTRL_D, 0), (b"/bye" + ENTER, 0), (signal.SIGTERM, -signal.SIGTERM),
                        (signal.SIGHUP, -signal.SIGHUP), (signal.SIGABRT, -signal.SIGABRT)):
        with chat() as c:
            if isinstance(end, bytes):
                c.send(end)
            else:
                os.kill(c.pid, end)
            equal(c.wait(), status, f"status after {end!r}")
            equal(c.modes_now(), c.modes, f"terminal modes after {end!r}")
            equal(b"\x1b[?2004l" in c.out, True, f"bracketed paste is off after {end!r}")


@check
def stopping_and_continuing():
    with chat("-n", "4", "--session", "stop") as c:
        c.send(b"half")
        c.expect(rb"half")
        during = c.modes_now()
        os.kill(c.pid, signal.SIGTSTP)
        c.until(lambda: c.state() == "T", "the chat stops")
        equal(c.modes_now(), c.modes, "terminal modes while stopped")
        os.kill(c.pid, signal.SIGCONT)
        c.expect(rb"> half")
        equal(c.modes_now(), during, "terminal modes after SIGCONT")
        os.kill(c.pid, signal.SIGWINCH)
        c.expect(rb"> half")
        c.ask(b" and half")
    equal(questions("stop"), ["half and half"], "questions")


# ---- commands ----

@check
def files_go_with_the_next_message():
    with open(path("my notes.txt"), "w", encoding="utf-8") as file:
        file.write("Caf\u00e9\n```\ncode\n```\n")
    with open(path("b.txt"), "w", encoding="utf-8") as file:
        file.write("bbb")
    with chat("-n", "4", "--session", "file") as c:
        c.send(b"/file my", TAB)
        c.expect(rb"\\ notes.txt ")
        c.send(ENTER)
        c.expect(rb"my notes.txt: 19 B, .* attached to the next message")
        c.prompt()
        c.ask(b"/file b.txt What is it?")
        expected = "my notes.txt:\n````\nCaf\u00e9\n```\ncode\n```\n````\n\nb.txt:\n```\nbbb\n```\n\nWhat is it?"
        equal(questions("file"), [expected], "files")
        c.ask(b"again")
        equal(questions("file")[1:], ["again"], "the question after it")
        c.command(b"/file missing.txt", rb"cannot open missing.txt")
        c.command(b"/file tiny.gguf", rb"not text|not valid UTF-8")


@check
def commands_are_tolerant():
    with chat("-n", "4") as c:
        c.command(b"/reset now", rb"Started a new conversation")
        c.command(b"/stast", rb"unknown command '/stast'; did you mean /stats\?")
        c.command(b"/xyzzy", rb"unknown command '/xyzzy'; /help lists them")
        c.command(b"/set top_p 0.5", rb"top-p +0.5")
        c.command(b"/set top-p 3", rb"expected a number from 0 to 1, not '3'")
        c.command(b"/regen", rb"there is no answer to replace")
        c.command(b"/undo", rb"there is no question to take back")
        c.command(b"/continue", rb"there is no answer to continue")
        c.send(b"/sta", TAB, ENTER)
        c.expect(rb"recipe: .*> ")
    _, errors = piped("/nope\n/stats\n")
    equal("unknown command '/nope'" in errors, True, errors)


@check
def the_past_can_be_changed():
    with chat("-n", "6", "--temp", "2", "--session", "past") as c:
        c.ask(b"one")
        c.ask(b"two")
        first = answers("past")
        c.ask(b"/regen")
        equal(questions("past"), ["one", "two"], "questions after /regen")
        equal(answers("past")[0], first[0], "the first answer after /regen")
        equal(answers("past")[1] != first[1], True, "the second answer after /regen differs")
        c.command(b"/undo", rb"took back the last exchange; 1 question is left")
        c.ask(b"three")
        equal(questions("past"), ["one", "three"], "questions after /undo")
        c.command(b"/system Be brief.", rb"the system message is set")
        c.ask(b"four")
        equal([m["role"] for m in conversation("past")["messages"][:2]], ["system", "user"], "roles")
        equal(len(conversation("past")["messages"]), 7, "messages")
        c.command(b"/clear", rb"Started a new conversation")
        c.ask(b"five")
        equal([m["content"] for m in conversation("past")["messages"][:2]], ["Be brief.", "five"],
              "messages after /clear")


@check
def a_cut_answer_continues():
    whole, _ = piped("hello\n", "-n", "12", "--greedy")
    piped("hello\n/continue\n/continue\n", "-n", "4", "--greedy", "--session", "cut")
    equal(answers("cut"), whole, "an answer in three parts")


# A template that refuses thoughts in the messages, and an answer that has some.
CHANNELS = ("{% for m in messages %}{% if '<|channel|>' in m.content %}{{ raise_exception('thoughts') }}"
            "{% endif %}{{ '<|start|>' + m.role + '<|channel|>final<|message|>' + m.content + '<|end|>' "
            "}}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}")
THOUGHTS = ('root ::= "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final'
            '<|message|>Hello."')


@check
def thoughts_are_separated():
    model = path("channels.gguf")
    tiny_model.write_model(model, template=CHANNELS)
    with open(path("thoughts.gbnf"), "w", encoding="ascii") as file:
        file.write(THOUGHTS)
    program = [BIN, "chat", "-m", model, "--grammar-file", path("thoughts.gbnf"),
               "--session", "thoughts"]
    result = subprocess.run(program + ["--json"], input=b"one\ntwo\n", cwd=FOLDER, env=environment(),
                            capture_output=True, timeout=120, check=False)
    lines = [json.loads(line) for line in result.stdout.splitlines() if b'"content"' in line]
    equal([(line["content"], line["reasoning_content"]) for line in lines],
          [("Hello.", "hm")] * 2, f"answers, with {result.stderr[-300:]}")
    equal(answers("thoughts"), ["Hello."] * 2, "contents of the messages")
    result = subprocess.run(program[:-2], input=b"one\n", cwd=FOLDER, env=environment(),
                            capture_output=True, timeout=120, check=False)
    equal(result.stdout.decode(), "<think>\nhm\n</think>\n\nHello.\n", "as text")


# ---- saved conversations ----

@check
def a_session_goes_on_identically():
    for options in (("--greedy",), ("--temp", "1.5", "--seed", "7"), ("--greedy", "--kv", "best-3")):
        whole, _ = piped("one\ntwo\nthree\nfour\n", "-n", "24", *options)
        for name in ("again", "again.chat"):
            if os.path.exists(path(name)):
                os.remove(path(name))
        piped("one\ntwo\n", "-n", "24", "--session", "again", *options)
        rest, _ = piped("three\nfour\n", "-n", "24", "--session", "again", *options)
        equal(answers("again"), whole, f"answers with {options}")
        equal(rest, whole[2:], "the last two")
        equal(len(set("".join(whole))) > 5, True, "the answers vary")
        equal(stat.S_IMODE(os.stat(path("again.chat")).st_mode), 0o600, "mode")


@check
def save_and_load():
    with chat("-n", "8", "--greedy") as c:
        c.ask(b"one")
        c.command(b"/save kept", rb"saved to kept")
        c.ask(b"two")
        c.command(b"/save", rb"saved to kept")
        for command in (b"/save", b"/save!"):
            c.command(command + b" tiny.gguf", rb"tiny.gguf is not a saved session, and is never replaced")
    with chat("-n", "8", "--greedy") as c:
        c.command(b"/save kept", rb"kept exists; /save! kept replaces it")
        c.command(b"/load kept", rb"kept: 2 questions, \d+ tokens")
        c.ask(b"three")
        c.command(b"/save! kept", rb"saved to kept")
        c.command(b"/load nowhere", rb"nowhere does not exist")
    with chat("-n", "8", "--greedy", "--session", "whole") as c:
        for question in (b"one", b"two", b"three"):
            c.ask(question)
    equal(answers("kept"), answers("whole"), "answers")
    with open(MODEL, "rb") as file:
        equal(file.read(4), b"GGUF", "the model is not replaced")


@check
def sessions_of_recipes_that_evict():
    for i, recipe in enumerate(("sink 4: f16; keep 24 by h2o; window 8: f16",
                                "sink 4: f16; body: none; window 24: f16")):
        options = ("-n", "8", "--greedy", "--kv", recipe, "--session")
        whole, parts = piped("one\ntwo\nthree\n", *options, f"whole{i}")[0], []
        for question in ("one\n", "two\n", "three\n"):
            parts += piped(question, *options, f"parts{i}")[0]
        equal(parts, whole, f"answers in parts with {recipe}")
        equal(os.path.exists(path(f"parts{i}")), True, "a file for the cache")


@check
def a_session_without_its_cache():
    piped("one\ntwo\n", "-n", "8", "--greedy", "--session", "half")
    os.remove(path("half"))
    piped("three\n", "-n", "8", "--greedy", "--session", "half")
    equal(questions("half"), ["one", "two", "three"], "questions without a cache")
    # A recipe that evicts: without its cache the conversation is prefilled again.
    recipe = "sink 4: f16; keep 64 by h2o; window 16: f16"
    piped("one\n", "-n", "8", "--greedy", "--session", "evicts", "--kv", recipe)
    equal(os.path.exists(path("evicts")), True, "a file for the cache")
    os.remove(path("evicts"))
    piped("two\n", "-n", "8", "--greedy", "--session", "evicts", "--kv", recipe)
    equal(questions("evicts"), ["one", "two"], "questions with eviction")
    # Another recipe.
    piped("four\n", "-n", "8", "--greedy", "--session", "half", "--kv", "best-3")
    equal(questions("half")[3:], ["four"], "questions with another recipe")


@check
def what_cannot_be_read_is_not_replaced():
    piped("one\n", "-n", "4", "--greedy", "--session", "unread")
    os.rename(path("unread.chat"), path("moved_away.chat"))
    os.symlink(path("unread.chat"), path("unread.chat"))  # a link to itself: ELOOP, not ENOENT
    _, errors = piped("two\n", "-n", "4", "--greedy", "--session", "unread", status=1)
    equal("cannot read unread.chat" in errors, True, f"the error in {errors}")
    equal(os.path.islink(path("unread.chat")), True, "the file that cannot be read")
    equal(questions("moved_away"), ["one"], "questions of the earlier conversation")


@check
def changes_by_commands_are_kept():
    piped("one\ntwo\n/undo\n", "-n", "8", "--session", "changed")
    equal(questions("changed"), ["one"], "questions after /undo")
    piped("three\n/undo\n/save! copy\n/system Be brief.\n", "-n", "8", "--session", "changed")
    equal(questions("changed"), ["one", "three"], "questions: /undo went to the other file")
    equal([m["role"] for m in conversation("copy")["messages"]],
          ["system", "user", "assistant"], "the name of the last /save is kept")
    piped("four\n", "-n", "8", "--session", "changed")
    equal(questions("changed"), ["one", "three", "four"], "questions")
    equal(conversation("changed")["unknown_tokens"], 0, "unknown tokens")
    piped("/load changed\nfive\n", "-n", "8", "--session", "copy")
    equal(questions("changed"), ["one", "three", "four", "five"], "questions of the loaded conversation")
    equal(questions("copy"), ["one"], "questions of the other one")


@check
def run_and_chat_share_sessions():
    run = [BIN, "run", "-m", MODEL, "-t", "1", "--chat", "-n", "8", "--greedy", "--session", "shared"]
    piped("", program=[*run, "-p", "one"])
    piped("two\n/undo\ntwo\n/system x\n", "-n", "8", "--greedy", "--session", "shared")
    found = conversation("shared")
    equal([m["content"] for m in found["messages"]][0::2], ["two"], "questions after run")
    equal(found["unknown_tokens"] > 0, True, "tokens of run")
    piped("", program=[*run, "-p", "three"])
    piped("four\n", "-n", "8", "--greedy", "--session", "shared")
    equal(questions("shared"), ["four"], "questions after run went on")
    equal(conversation("shared")["unknown_tokens"] > found["unknown_tokens"], True, "tokens of run")


@check
def damaged_files_are_refused():
    piped("one\n", "-n", "8", "--session", "broken")
    with open(path("broken.chat"), encoding="utf-8") as file:
        good = file.read()
    for bad in ("", "[]", good[:-20], good.replace('"user"', '"root"'), good.replace('"end":', '"end":9'),
                good.replace('"tokens":[', '"tokens":[-1,')):
        with open(path("broken.chat"), "w", encoding="utf-8") as file:
            file.write(bad)
        _, errors = piped("two\n", "-n", "8", "--session", "broken", status=1)
        equal("broken.chat: damaged, or not a conversation" in errors, True, errors)
        with open(path("broken.chat"), encoding="utf-8") as file:
            equal(file.read(), bad, "a damaged file is left as it is")
    _, errors = piped("two\n", "--session", "tiny.gguf", status=1)


# ---- history and look ----

@check
def history_is_kept():
    name = path("state/lowkey/history")
    changes = {"XDG_STATE_HOME": path("state")}
    base = environment()
    del base["LOWKEY_HISTORY"]

    def start(*options, **more):
        c = Chat(command("--verbose", "-n", "4", *options), base | changes | more, FOLDER)
        c.prompt()
        return c

    c = start()
    c.ask(b"first \\ entry")
    c.ask(PASTE_START, b"second\rentry", PASTE_END)
    c.close()
    equal(stat.S_IMODE(os.stat(name).st_mode), 0o600, "mode of the history")
    with open(name, encoding="utf-8") as file:
        equal(file.read(), "first \\\\ entry\nsecond\\nentry\n", "history")
    c = start("--session", "recalled")
    c.ask(UP)
    c.ask(UP, UP)
    c.ask(b"\x12", b"seco", ENTER[:0])
    c.close()
    equal(questions("recalled"), ["second\nentry", "first \\ entry", "second\nentry"], "recalled")
    before = os.stat(name).st_size
    c = start(LOWKEY_HISTORY="")
    c.ask(b"secret")
    c.close()
    equal(os.stat(name).st_size, before, "size of the history")


@check
def color_follows_the_terminal():
    def has_color(**changes):
        with chat(**changes) as c:
            return b"\x1b[2m" in c.out or b"36m" in c.out

    equal(has_color(), True, "color")
    equal(has_color(NO_COLOR="1"), False, "color with NO_COLOR")
    equal(has_color(TERM="dumb"), False, "color with TERM=dumb")


def write_model():
    """The tiny model with an output matrix of its own: with the embedding's it repeats one token."""
    shared = tiny_model.tensors
    output = ("output.weight", (tiny_model.N_EMBD, len(tiny_model.vocabulary()[0])), 0.5)
    tiny_model.tensors = lambda words=(): shared(words) + [output]
    tiny_model.write_model(MODEL)


def main():
    write_model()
    chosen = [c for c in CHECKS if not sys.argv[3:] or c.__name__ in sys.argv[3:]]
    failed = 0
    for one in chosen:
        try:
            one()
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAILED: {one.__name__}: {error}")
            if not isinstance(error, Failure):
                traceback.print_exc()
    print(f"{len(chosen) - failed} of {len(chosen)} checks passed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
