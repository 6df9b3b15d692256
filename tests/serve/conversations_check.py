"""Checks that no conversation ends for something in its history.

usage: conversations_check.py LOWKEY

Histories as clients send them: images, items of other programs, empty and cut messages, and what the
server itself answered, in every API. A tiny random model is enough: a grammar forces its answers.
"""
import json
import os
import sys
import tempfile

import tiny_model
from serve_process import Server

SHORT = {"max_tokens": 2, "temperature": 0}
ASK = {"role": "user", "content": "q"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
failures = 0


def expect(what, good, seen=None):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}" + (f": {str(seen)[:900]}" if seen is not None else ""))


def served(server, what, path, body):
    reply = server.post(path, body, timeout=60)
    expect(what, reply.status == 200, reply.body)
    return reply.json()


def prompt(server, body):
    """What the template makes of a chat."""
    return server.post("/apply-template", body, timeout=60).json().get("prompt", "")


def check_histories(server):
    """Messages that other servers take: each is followed by a question."""
    assistant = {"role": "assistant"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    histories = {
        "content null": [{**assistant, "content": None}],
        "no content": [assistant],
        "content null with thoughts": [{**assistant, "content": None, "reasoning_content": "h"}],
        "no calls": [{**assistant, "content": None, "tool_calls": []}],
        "calls null": [{**assistant, "content": "a", "tool_calls": None}],
        "refusal": [{**assistant, "content": None, "refusal": "no"}],
        "no parts": [{"role": "user", "content": []}],
        "empty texts": [{"role": "user", "content": ""}, {**assistant, "content": ""}],
        "image": [{"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}],
        "audio": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        "file": [{"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf"}}]}],
        "unknown part": [{"role": "user", "content": [{"type": "hologram"}]}],
        "image of a tool": [{**assistant, "tool_calls": [call]},
                            {"role": "tool", "tool_call_id": "c", "content": [PICTURE]}],
        "result null": [{**assistant, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "c", "content": None}],
        "result that is JSON": [{**assistant, "tool_calls": [call]},
                                {"role": "tool", "tool_call_id": "c", "content": {"a": 1}}],
        "call without result": [{**assistant, "tool_calls": [call]}],
        "result without call": [{"role": "tool", "tool_call_id": "x", "content": "r"}],
        "old call": [{**assistant, "content": None, "function_call":
                      {"name": "f", "arguments": "{}"}},
                     {"role": "function", "name": "f", "content": "r"}],
        "custom call": [{**assistant, "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "f", "input": "text"}}]}],
    }
    for arguments in ["", None, "null", '{"a": ', "[1]", {"a": 1}]:
        cut = {**call, "function": {"name": "f", "arguments": arguments}}
        histories[f"arguments {arguments!r}"] = [{**assistant, "tool_calls": [cut]}]
    for what, history in histories.items():
        body = {"messages": [ASK, *history, ASK], **SHORT}
        served(server, what, "/v1/chat/completions", body)
    newest = {"messages": [{"role": "user", "content": [PICTURE]}]}
    served(server, "image in the newest message", "/v1/chat/completions", {**newest, **SHORT})
    expect("a placeholder", "[image omitted" in prompt(server, newest), prompt(server, newest))
    expect("the log says so", "left out 1 parts that are not text (image_url)" in server.messages(),
           server.messages()[-500:])


def main():
    program = sys.argv[1]
    with Server(program, ["--log"]) as server:
        check_histories(server)
    sys.exit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    main()
