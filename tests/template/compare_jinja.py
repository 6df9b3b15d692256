"""Compares the template engine with Jinja 2: all templates at hand, ten conversations.

usage: compare_jinja.py RENDER_CHATS [TEMPLATES.tar.gz]    RENDER_CHATS: the program in build/tests

Templates are those of the tests and those in the sources of llama.cpp, which are read from the
archive and not copied. Each conversation is rendered by lowkey, which may rewrite it for the
template, and by Jinja 2, as transformers sets it up: from the rewritten messages the texts must be
equal, byte by byte. From the messages as they were given, they must be equal too, unless the
template refuses them, or has no place for tools, calls, thoughts or the system prompt.
In every prompt are all texts, names of calls, values of arguments and results.
"""
import datetime
import html
import json
import os
import re
import subprocess
import sys
import tarfile

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
import formats_check  # noqa: E402
import tiny_model  # noqa: E402

TOOLS = [{"type": "function", "function": {
    "name": "find_file", "description": "Finds a file.", "parameters": {
        "type": "object", "properties": {"path_name": {"type": "string", "description": "where"},
                                         "depth": {"type": "integer", "description": "levels"}},
        "required": ["path_name"]}}}]
ASK = {"role": "user", "content": "First question?"}
MORE = {"role": "user", "content": "Second question?"}
SYSTEM = {"role": "system", "content": "Be very brief."}


def call(number, **arguments):
    return {"id": f"call{number:05}", "type": "function",
            "function": {"name": "find_file", "arguments": arguments}}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": "find_file", "content": text}


def answer(text="", calls=(), **fields):
    return {"role": "assistant", "content": text, **fields,
            **({"tool_calls": list(calls)} if calls else {})}


ONE = [ASK, answer(calls=[call(1, path_name="alpha.txt", depth=3)]), result(1, "result-one")]
TWO = [ASK, answer(calls=[call(1, path_name="alpha.txt"), call(2, path_name='a "b"\n{c}')]),
       result(1, "result-one"), result(2, '{"found": true}')]
PLACEHOLDER = "[image omitted: this model reads text only]"
CONVERSATIONS = {
    "question": ([ASK], None),
    "system and turns": ([SYSTEM, ASK, answer("First answer."), MORE], None),
    "tools": ([SYSTEM, ASK], TOOLS),
    "call and result": ([*ONE, answer("Final answer."), MORE], TOOLS),
    "newest result": (ONE, TOOLS),
    "parallel calls": ([*TWO, answer("Final answer."), MORE], TOOLS),
    "calls one after the other": ([*ONE, answer("Some text.", [call(2, path_name="beta.txt")]),
                                   result(2, "result-two")], TOOLS),
    "thoughts": ([ASK, answer("First answer.", reasoning_content="old-thoughts"), MORE,
                  answer("", [call(1, path_name="alpha.txt")], reasoning_content="new-thoughts"),
                  result(1, "result-one")], TOOLS),
    "system in the middle": ([SYSTEM, ASK, answer("First answer."),
                              {"role": "system", "content": "Now be long."}, MORE], None),
    "images": ([{"role": "user", "content": "See this:\n" + PLACEHOLDER}, answer("First answer."),
                MORE], None),
}


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    out = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    out.filters["tojson"] = tojson
    out.globals["raise_exception"] = raise_exception
    out.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return out


def render_jinja(template, messages, tools):
    """(text, None) or (None, why)."""
    try:
        return template.render(messages=messages, tools=tools, documents=None, bos_token="<BOS>",
                               eos_token="<EOS>", add_generation_prompt=True), None
    except Exception as error:  # pylint: disable=broad-except
        return None, f"{type(error).__name__}: {error}"


def templates(archive):
    """Pairs of name and text."""
    out = {"tiny": tiny_model.TEMPLATE}
    out |= {f"formats {name}": form[0] for name, form in formats_check.FORMATS.items()
            if name != "phi 4 mini"}  # it has no place for the content
    if archive:
        with tarfile.open(archive) as tar:
            for member in tar:
                if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                    name = os.path.basename(member.name).removesuffix(".jinja")
                    text = tar.extractfile(member).read().decode()
                    # transformers' own tag, which marks text and writes nothing
                    out[name] = re.sub(r"\{%(-?) *(end)?generation *(-?)%\}",
                                       r"{%\1 if true \3%}{% endif %}", text)
    return out


def letters(text):
    """Without quotes, escapes and white space, which forms write differently."""
    return re.sub(r"\\+n|[^A-Za-z0-9]", "", text)


def words_of(messages, tools):
    """What the model must see of a conversation."""
    for message in messages:
        yield message["content"].strip()
        for one in message.get("tool_calls", []):
            yield one["function"]["name"]
            for value in one["function"]["arguments"].values():
                yield str(value)
    if tools:
        yield "path_name"


def main():
    render_chats, archive = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    env, n, n_rewritten, n_failed, reasons = environment(), 0, 0, 0, {}
    with subprocess.Popen([render_chats], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        for name, text in templates(archive).items():
            template = env.from_string(text)
            for what, (messages, tools) in CONVERSATIONS.items():
                line = json.dumps({"template": text, "messages": messages, "tools": tools})
                program.stdin.write(line.encode() + b"\n")
                program.stdin.flush()
                got = {**json.loads(program.stdout.readline()), "template": text}
                n += 1
                problem = compare(template, messages, tools, got, reasons, f"{name}: {what}")
                if problem:
                    n_failed += 1
                    print(f"FAILED: {name}: {what}: {problem}")
        program.stdin.close()
    for reason, where in sorted(reasons.items()):
        print(f"{len(where)} rewritten: {reason}: {', '.join(where[:3])}")
        n_rewritten += len(where)
    print(f"{n} prompts: {n - n_rewritten - n_failed} equal, {n_rewritten} rewritten and equal, "
          f"{n_failed} differ")
    sys.exit(1 if n_failed else 0)


def compare(template, messages, tools, got, reasons, where):
    """What is wrong; None: nothing."""
    if "error" in got:
        return got["error"]
    text, why = render_jinja(template, got["messages"], got["tools"])
    if text is None and any(word in why for word in ("NoneType", "undefined", "generator")):
        reasons.setdefault(f"Jinja alone fails: {why}", []).append(where)
        return None
    if html.unescape(text or "") == got["text"] != text:
        reasons.setdefault("Jinja escapes what is added to a safe string", []).append(where)
        return None
    if text != got["text"]:
        return f"of the same messages Jinja makes {why or text!r}, lowkey {got['text']!r}"
    missing = [word for word in words_of(messages, tools) if letters(word) not in letters(text)]
    plain, why = render_jinja(template, messages, tools)
    if missing == ["Some text."] and "Some text." not in (plain or ""):
        reasons.setdefault("the template drops text next to calls", []).append(where)
        return None
    if missing:
        return f"the prompt does not show {missing}: {text!r}"
    if plain == text:
        return None
    if plain is None:
        reason = "the template refuses it"
    elif tools and not got["has_tools"]:
        reason = "the template has no place for tools"
    elif not got["calls"] and any(m.get("tool_calls") for m in messages):
        reason = "the template has no place for calls"
    elif letters(json.dumps(got["messages"])).count("toolcalls") > letters(
            json.dumps(messages)).count("toolcalls"):
        reason = "the template writes one call of a message"
    elif any("tool_plan" in m for m in got["messages"]) and "tool_plan" in got["template"]:
        reason = "text next to calls has another name in the template"
    elif any(m.get("reasoning_content") for m in messages):
        reason = "thoughts have another name in the template"
    elif any(m.get("tool_calls") for m in messages) and isinstance(
            next(m for m in got["messages"] if m.get("tool_calls"))["tool_calls"][0]["function"]
            ["arguments"], str):
        reason = "the template takes arguments as text"
    elif any(m["role"] == "system" for m in messages):
        reason = "the template has no place for a system prompt"
    else:
        return f"from the messages as given Jinja makes {plain!r}, lowkey {text!r}"
    reasons.setdefault(reason, []).append(where)
    return None


if __name__ == "__main__":
    main()
