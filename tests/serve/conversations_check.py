"""Checks that no conversation ends for something in its history.

usage: conversations_check.py LOWKEY

Histories as clients send them: images, items of other programs, empty and cut messages, and what the
server itself answered, in every API. A tiny random model is enough: a grammar forces its answers.
"""
import json
import os
import re
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


STRICT = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
          "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
          "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
          "{{ {'name': m.tool_calls[0].function.name, 'parameters': "
          "m.tool_calls[0].function.arguments} | tojson }}{% endif %}{{ '<|im_end|>\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def check_own_answers(server):
    """The server takes back what it has answered, in every API: here two calls, and a template
    that refuses more than one."""
    tool = {"name": "ls", "parameters": {"type": "object", "properties": {}}}
    one = '{\\"name\\": \\"ls\\", \\"parameters\\": {}}'
    grammar = {"grammar": f'root ::= "[{one}, {one}]"', "temperature": 0}
    chat = {"messages": [ASK], "tools": [{"type": "function", "function": tool}], "max_tokens": 99,
            **grammar}
    answer = served(server, "chat", "/v1/chat/completions", chat)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"r{i}"}
               for i, call in enumerate(answer["tool_calls"])]
    back = {**chat, "messages": [ASK, answer, *results]}
    served(server, "its own calls", "/v1/chat/completions", back)
    text = prompt(server, {"messages": back["messages"], "tools": chat["tools"]})
    expect("each call before its result", 0 < text.find("ls") < text.find("r0") <
           text.rfind("ls") < text.find("r1"), text)
    body = {"model": "m", "messages": [ASK], "max_tokens": 99, **grammar,
            "tools": [{"name": "ls", "input_schema": tool["parameters"]}]}
    blocks = served(server, "messages", "/v1/messages", body)["content"]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "r"}
               for block in blocks]
    served(server, "its own blocks", "/v1/messages", {**body, "messages": [
        ASK, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]})
    body = {"input": [ASK], "max_output_tokens": 99, **grammar, "tools": [{"type": "function", **tool}]}
    items = served(server, "responses", "/v1/responses", body)["output"]
    outputs = [{"type": "function_call_output", "call_id": item["call_id"], "output": "r"}
               for item in items]
    served(server, "its own items", "/v1/responses", {**body, "input": [ASK, *items, *outputs]})
    body = {"messages": [ASK], "stream": False, "tools": chat["tools"],
            "options": {"temperature": 0, "num_predict": 99}}
    calls = [{"function": {"name": "ls", "arguments": {}}}] * 2
    served(server, "ollama's calls", "/api/chat", {**body, "messages": [
        ASK, {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "ls", "content": "r"},
        {"role": "tool", "tool_name": "ls", "content": "r"}]})


TYPED = tiny_model.TEMPLATE.replace("{% for message", "{% for tool in tools or [] %}{% set f = tool.function %}"
                                    "{{ f.name + ':' + f.description }}({% for k, v in f.parameters.properties.items() %}"
                                    "{{ k }}{% endfor %}){% endfor %}{% for message", 1).replace(
    "{{'<|im_start|>' + message", "{% if message.role == 'assistant' and not message.content %}{{ raise_exception('empty') }}"
    "{% endif %}{% if reasoning_effort | default('low') != 'low' %}{{ raise_exception('effort') }}{% endif %}{{'<|im_start|>' + message", 1)


def check_strict_templates(server):
    """Tools without description and parameters, empty answers and efforts, and a template that refuses them."""
    for more in ({}, {"description": None, "parameters": None}, {"parameters": {}}, {"parameters": {"type": "object"}}):
        tools = [{"type": "function", "function": {"name": "ls", **more}}]
        text = prompt(server, {"messages": [ASK], "tools": tools})
        expect(f"a tool with {more}", text.startswith("ls:()<|im_start|>"), text)
    full = {"name": "ls", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    text = prompt(server, {"messages": [ASK], "tools": [{"type": "function", "function": full}]})
    expect("a whole tool", text.startswith("ls:d(a)<|im_start|>"), text)
    for empty in ({}, {"content": ""}, {"content": None}, {"content": "", "tool_calls": []}):
        text = prompt(server, {"messages": [ASK, {"role": "assistant", **empty}, ASK]})
        expect("an empty answer", text.count("user") == 1 and text.count("assistant") == 1, text)
    for effort in ("low", "medium", "max"):
        body = {"messages": [ASK], "reasoning_effort": effort}
        expect(f"effort {effort}", prompt(server, body) == prompt(server, {"messages": [ASK]}) != "", prompt(server, body))


def reordered(value):
    """The same JSON value, as another program would keep it: sorted keys, whole numbers without a point."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [reordered(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def changed_calls(server):
    text = server.ask("GET", "/metrics").body.decode()
    return int(re.search(r"^lowkey_changed_calls_total (\d+)", text, re.M).group(1))


def check_written(server):
    """Arguments come back in another serialization, and are rendered as the model wrote them."""
    written = '{"z":1.0,"a":  [1,2.50, {"y":1e2}], "u": "\\u00e9\\/ \\"{", "n":null}'
    text = '<tool_call>\n{"name": "ls", "arguments": ' + written + '}\n</tool_call>'
    quoted = json.dumps(text)
    tool = {"name": "ls", "parameters": {"type": "object", "properties": {}}}
    chat = {"messages": [ASK], "tools": [{"type": "function", "function": tool}], "max_tokens": 200,
            "grammar": f"root ::= {quoted}", "temperature": 0}
    first_one = served(server, "call", "/v1/chat/completions", chat)
    call = first_one["choices"][0]["message"]["tool_calls"][0]
    value = json.loads(call["function"]["arguments"])
    held = first_one["usage"]["total_tokens"]

    def rendered(arguments, call_id=call["id"], name="ls"):
        return prompt(server, {"messages": [ASK, {"role": "assistant", "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": call_id, "content": "r"}], "tools": chat["tools"]})

    before = changed_calls(server)
    same = [call["function"]["arguments"], value, reordered(value), json.dumps(reordered(value), indent=3)]
    for arguments in same:
        expect("as written", text in rendered(arguments), rendered(arguments))
    expect("changed calls are counted", changed_calls(server) >= before + 4, changed_calls(server))
    other = {**value, "z": 2}
    expect("another value", written not in rendered(other) and '"z": 2' in rendered(other), rendered(other))
    expect("another id", written not in rendered(value, "x"), rendered(value, "x"))
    expect("another name", written not in rendered(value, name="f"), rendered(value, name="f"))
    expect("a text that looks like the place of arguments", '{"a0-0": 0}' in rendered({"a0-0": 0}))
    two = prompt(server, {"messages": [ASK, {"role": "assistant", "tool_calls": [
        {**call, "function": {"name": "ls", "arguments": arguments}} for arguments in (reordered(value), other, value)]}],
        "tools": chat["tools"]})
    expect("calls next to others", two.count(written) == 2 and two.count('"z": 2') == 1, two)
    back = {**chat, "messages": [ASK, {"role": "assistant", "tool_calls": [
        {**call, "function": {"name": "ls", "arguments": json.dumps(reordered(value))}}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "r"}]}
    usage = served(server, "read on", "/v1/chat/completions", back)["usage"]
    expect("the session goes on", usage["prompt_tokens_details"]["cached_tokens"] >= held - 2, (held, usage))

    # The other APIs, and streams. In ollama's calls have no ids.
    made, _ = chat_calls(stream(server, "/v1/chat/completions", chat))
    expect("the same in a stream", json.loads(made[0]["arguments"]) == value, made)
    body = {"model": "m", "messages": [ASK], "max_tokens": 200, "grammar": chat["grammar"], "temperature": 0,
            "tools": [{"name": "ls", "input_schema": tool["parameters"]}]}
    first_one = served(server, "call", "/v1/messages", body)
    blocks = [{**block, "input": reordered(block["input"])} for block in first_one["content"]]
    usage = served(server, "messages", "/v1/messages", {**body, "messages": [
        ASK, {"role": "assistant", "content": blocks}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": blocks[0]["id"], "content": "r"}]}]})["usage"]
    expect("messages go on", usage["cache_read_input_tokens"] >= held - 2, (held, usage))
    body = {"input": [ASK], "max_output_tokens": 200, "grammar": chat["grammar"], "temperature": 0,
            "tools": [{"type": "function", **tool}]}
    items = [{**item, "arguments": json.dumps(reordered(json.loads(item["arguments"])))}
             for item in served(server, "call", "/v1/responses", body)["output"]]
    usage = served(server, "responses", "/v1/responses", {**body, "input": [ASK, *items, {
        "type": "function_call_output", "call_id": items[0]["call_id"], "output": "r"}]})["usage"]
    expect("responses go on", usage["input_tokens_details"]["cached_tokens"] >= held - 2, (held, usage))
    reply = served(server, "ollama", "/api/chat", {
        "messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "ls", "arguments": reordered(value)}}]},
            {"role": "tool", "tool_name": "ls", "content": "r"}],
        "stream": False, "tools": chat["tools"], "options": {"num_predict": 2}})
    expect("ollama goes on", reply["prompt_eval_count"] > 0, reply)


def check_kept(server, first_one, second, third):
    """Responses that are kept can be read, removed, and referred to by their items. `third` is of a
    stream."""
    path = "/v1/responses"
    for response in (first_one, second, third):
        reply = server.ask("GET", f"{path}/{response['id']}")
        expect("a kept response", reply.status == 200 and reply.json() == response, reply.body)
    ids = [{"type": "item_reference", "id": item["id"]} for item in first_one["output"]]
    bare = [{"id": item["id"]} for item in first_one["output"]]
    body = {"temperature": 0, "max_output_tokens": 4}
    whole = served(server, "items", path, {**body, "input": [ASK, *first_one["output"], ASK]})
    for references in (ids, bare):
        some = served(server, "references", path, {**body, "input": [ASK, *references, ASK]})
        expect("the same prompt", some["usage"]["input_tokens"] == whole["usage"]["input_tokens"],
               (some["usage"], whole["usage"]))
    reply = server.post(path, {**body, "input": 15000 * bare[:1]})
    expect("references to more than is kept", reply.status == 400 and "all references together" in reply.json()["error"]["message"], reply.body)
    served(server, "after references", path, {**body, "input": "q", "previous_response_id": some["id"]})
    reply = server.ask("DELETE", f"{path}/{first_one['id']}")
    expect("removed", reply.status == 200 and reply.json() == {
        "id": first_one["id"], "object": "response", "deleted": True}, reply.body)
    for method in ("GET", "DELETE"):
        for old in (first_one["id"], "resp_1", "a/b"):
            reply = server.ask(method, f"{path}/{old}")
            expect("no response", reply.status == 404 and
                   reply.json()["error"]["param"] == "response_id", reply.body)
    for item in (*ids, {"type": "item_reference", "id": "msg_1"}, {"type": "item_reference"},
                 {"type": "item_reference", "id": second["output"][0]["id"][:-3]}):
        reply = server.post(path, {**body, "input": [ASK, item]})
        expect("no such item", reply.status == 400 and reply.error_code() == "item_not_found" and
               reply.json()["error"]["param"] == "input", reply.body)
    reply = server.post(path, {**body, "input": "q", "previous_response_id": first_one["id"]})
    expect("a removed response", reply.status == 400, reply.body)


def check_previous(server):
    """A response goes on with another one, by its id."""
    body = {"temperature": 0, "max_output_tokens": 4}
    path = "/v1/responses"
    first_one = served(server, "first", path, {**body, "input": "q", "instructions": "old"})
    second = served(server, "second", path, {**body, "input": [ASK], "instructions": "new",
                                             "previous_response_id": first_one["id"]})
    whole = served(server, "whole", path, {**body, "instructions": "new", "input": [
        ASK, *first_one["output"], ASK]})
    expect("the same prompt", second["usage"]["input_tokens"] == whole["usage"]["input_tokens"] and
           second["previous_response_id"] == first_one["id"], (second, whole))
    events = stream(server, path, {**body, "input": "q", "previous_response_id": second["id"]})
    third = events[-1]["response"]
    expect("a stream goes on", third["usage"]["input_tokens"] > second["usage"]["input_tokens"],
           third)
    served(server, "after a stream", path, {**body, "previous_response_id": third["id"]})
    unkept = served(server, "not stored", path, {**body, "input": "q", "store": False})
    for old in (unkept["id"], "resp_1"):
        reply = server.post(path, {**body, "input": "q", "previous_response_id": old})
        expect("unknown id", reply.status == 400 and
               reply.error_code() == "previous_response_not_found", reply.body)
    check_kept(server, first_one, second, third)
    for _ in range(256):
        served(server, "one of many", path, {**body, "input": "q", "max_output_tokens": 1})
    reply = server.post(path, {**body, "input": "q", "previous_response_id": third["id"]})
    expect("the oldest leave", reply.status == 400, reply.body)


# ---- calls that are valid by construction ----

OPEN = "<tool_call>"
SMALL = {"type": "object", "properties": {"on": {"type": "boolean"}, "to": {"enum": ["a", "bb"]}},
         "required": ["on", "to"], "additionalProperties": False}
FORM = {"type": "object", "properties": {"t": {"type": "boolean"}}, "required": ["t"],
        "additionalProperties": False}
NAMES = ["light", "switch"]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SMALL}} for name in NAMES]


def is_valid(name, arguments, allowed=tuple(NAMES)):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    return name in allowed and set(value) == {"on", "to"} and isinstance(
        value["on"], bool) and value["to"] in ("a", "bb")


def stream(server, path, body):
    """The data of all events, in order."""
    reply = server.post(path, {**body, "stream": True}, timeout=60)
    expect(f"{path}: stream", reply.status == 200, reply.body)
    lines = [line for line in reply.body.decode().split("\n") if line.startswith(("data: {", "{"))]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def chat_calls(events):
    """Calls by index, and in how many parts the arguments came."""
    calls, n_part = {}, 0
    for event in events:
        for choice in event.get("choices", []):
            for delta in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
                call["name"] += delta["function"].get("name", "")
                call["arguments"] += delta["function"]["arguments"]
                n_part += 1
    return calls, n_part


def check_lazy(server, bias):
    """Under "auto" a call that has begun is valid, and its arguments arrive as they are written.
    The bias makes the model begin calls all the time; its weights are random."""
    chat = {"messages": [ASK], "tools": TOOLS, "temperature": 0, "logit_bias": bias,
            "max_tokens": 300}
    whole = served(server, "lazy", "/v1/chat/completions", chat)["choices"][0]
    calls = whole["message"].get("tool_calls", [])
    expect("several calls", len(calls) > 1 and whole["finish_reason"] == "length", whole)
    for call in calls:
        expect("a valid call", is_valid(call["function"]["name"], call["function"]["arguments"]), call)
    made, n_part = chat_calls(stream(server, "/v1/chat/completions", chat))
    expect("indices", sorted(made) == list(range(len(made))), made)
    expect("as they are written", n_part > 3 * len(made), n_part)
    names = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    got = [(made[i]["name"], made[i]["arguments"]) for i in range(len(calls))]
    expect("stream equals the whole", got == names, (got, names))
    single = served(server, "single", "/v1/chat/completions", {**chat, "parallel_tool_calls": False})
    expect("one call", len(single["choices"][0]["message"]["tool_calls"]) == 1, single)
    made, _ = chat_calls(stream(server, "/v1/chat/completions",
                                {**chat, "parallel_tool_calls": False}))
    expect("one call in a stream", list(made) == [0] and is_valid(**made[0]), made)

    for mode in ("auto", "required"):
        some = {**chat, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": mode, "tools": [{"type": "function", "function": {"name": "switch"}}]}}}
        message = served(server, mode, "/v1/chat/completions", some)["choices"][0]["message"]
        expect(f"allowed_tools {mode}", message.get("tool_calls") and all(
            is_valid(call["function"]["name"], call["function"]["arguments"], ["switch"])
            for call in message["tool_calls"]), message)

    # A schema that no grammar has costs only its constraint.
    odd = {"type": "function", "function": {"name": "odd", "parameters": {
        "type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)"}}}}}
    message = served(server, "odd", "/v1/chat/completions", {
        **chat, "tools": [odd, *TOOLS]})["choices"][0]["message"]
    expect("calls next to an odd schema", message.get("tool_calls"), message)

    # The other APIs.
    tools = [{"name": name, "input_schema": SMALL} for name in NAMES]
    body = {"model": "m", "messages": [ASK], "tools": tools, "temperature": 0, "max_tokens": 300,
            "logit_bias": bias}
    blocks = [b for b in served(server, "lazy", "/v1/messages", body)["content"]
              if b["type"] == "tool_use"]
    expect("messages", len(blocks) == len(calls) and
           all(is_valid(b["name"], b["input"]) for b in blocks), blocks)
    parts = {}
    for event in stream(server, "/v1/messages", body):
        if event["type"] == "content_block_delta":
            parts.setdefault(event["index"], []).append(event["delta"].get("partial_json", ""))
    inputs = ["".join(part) for part in parts.values() if "".join(part).startswith("{")]
    expect("messages in a stream", [json.loads(text) for text in inputs[:len(blocks)]] ==
           [b["input"] for b in blocks] and max(map(len, parts.values())) > 3, parts)

    tools = [{"type": "function", "name": name, "parameters": SMALL} for name in NAMES]
    body = {"input": "q", "tools": tools, "temperature": 0, "max_output_tokens": 300,
            "logit_bias": bias}
    items = [item for item in served(server, "lazy", "/v1/responses", body)["output"]
             if item["type"] == "function_call"]
    expect("responses", len(items) == len(calls) and
           all(is_valid(item["name"], item["arguments"]) for item in items), items)
    events = stream(server, "/v1/responses", body)
    done = [event["arguments"] for event in events
            if event["type"] == "response.function_call_arguments.done"]
    expect("responses in a stream", done[:len(items)] == [item["arguments"] for item in items], done)
    expect("deltas of responses", sum(event["type"] == "response.function_call_arguments.delta"
                                      for event in events) > 3 * len(items), events[-1])
    some = {**body, "tool_choice": {"type": "allowed_tools", "mode": "required",
                                    "tools": [{"type": "function", "name": "light"}]}}
    items = served(server, "allowed", "/v1/responses", some)["output"]
    expect("allowed_tools of responses", items[-1]["type"] == "function_call" and
           is_valid(items[-1]["name"], items[-1]["arguments"], ["light"]), items)


def check_cut_calls(server, bias):
    """A call that the limit of tokens cuts off: the same streamed and whole, and the reason is "length"."""
    seen, path = set(), "/v1/chat/completions"
    base = {"temperature": 0, "logit_bias": bias}
    for parallel in (True, False):
        for n in range(1, 140, 3):
            chat = {"messages": [ASK], "tools": TOOLS, "max_tokens": n, "parallel_tool_calls": parallel, **base}
            choice = served(server, "cut", path, chat)["choices"][0]
            calls = [(call["function"]["name"], call["function"]["arguments"])
                     for call in choice["message"].get("tool_calls", [])]
            events = stream(server, path, chat)
            made, _ = chat_calls(events)
            deltas = [one for event in events for one in event.get("choices", [])]
            content = "".join(one["delta"].get("content") or "" for one in deltas)
            expect(f"{n}: calls", [(made[i]["name"], made[i]["arguments"]) for i in sorted(made)] == calls, (made, calls))
            expect(f"{n}: text", content == (choice["message"]["content"] or ""), (content, choice))
            expect(f"{n}: reason", deltas[-1]["finish_reason"] == choice["finish_reason"], (deltas[-1], choice))
            is_cut = bool(calls) and not calls[-1][1].endswith("}")
            if is_cut or not calls:
                expect(f"{n}: length", choice["finish_reason"] == "length", choice)
            seen.add((min(len(calls), 2), is_cut, choice["finish_reason"]))
    expect("calls that are cut, and calls that are not", {(1, True, "length"), (1, False, "tool_calls"),
                                                          (2, True, "length")} <= seen, seen)
    chat = {"messages": [ASK], "tools": TOOLS, **base}
    for n in range(1, 75):
        choice = served(server, "cut", path, {**chat, "max_tokens": n})["choices"][0]
        calls = choice["message"].get("tool_calls", [])
        if len(calls) == 1 and not calls[0]["function"]["arguments"].endswith("}"):
            break
    cut, arguments = {"max_tokens": n}, calls[0]["function"]["arguments"]
    body = {"input": "q", "tools": [{"type": "function", "name": name, "parameters": SMALL} for name in NAMES],
            "max_output_tokens": n, **base}
    whole, last = served(server, "cut", "/v1/responses", body), stream(server, "/v1/responses", body)[-1]["response"]
    for response in (whole, last):
        item = response["output"][-1]
        expect("responses", response["status"] == item["status"] == "incomplete" and
               item["type"] == "function_call" and item["arguments"] == arguments, response)
    body = {"model": "m", "messages": [ASK], "tools": [{"name": name, "input_schema": SMALL} for name in NAMES],
            **cut, **base}
    message = served(server, "cut", "/v1/messages", body)
    expect("messages", message["stop_reason"] == "max_tokens" and message["content"][-1]["type"] == "tool_use" and
           message["content"][-1]["input"] == {}, message)
    events = stream(server, "/v1/messages", body)
    parts = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    expect("a stream of messages", "".join(parts) == arguments and any(
        event.get("delta", {}).get("stop_reason") == "max_tokens" for event in events), events)
    body = {"messages": [ASK], "tools": TOOLS, "logit_bias": bias, "options": {"temperature": 0, "num_predict": n}}
    lines = stream(server, "/api/chat", body)
    reply = served(server, "cut", "/api/chat", {**body, "stream": False})
    for message in (reply["message"], *(line["message"] for line in lines)):
        expect("ollama's clients run what they get", not message.get("tool_calls"), message)


def first(items, kinds):
    return next(item for item in items if item["type"] in kinds)


def check_form_and_tools(server, open_bias, brace_bias):
    """A schema and tools: a call or the form, as the first token decides."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}}
    for bias, is_call in ((open_bias, True), (brace_bias, False)):
        chat = {"messages": [ASK], "tools": TOOLS, "temperature": 0, "logit_bias": bias,
                "max_tokens": 200, "response_format": form}
        for choice in ("auto", None):
            body = chat if choice is None else {**chat, "tool_choice": choice}
            message = served(server, "form", "/v1/chat/completions", body)["choices"][0]["message"]
            if is_call:
                calls = message.get("tool_calls", [])
                expect("the calls", len(calls) > 1 and
                       all(is_valid(**call["function"]) for call in calls[:-1]), message)
            else:
                expect("the form", set(json.loads(message["content"])) == {"t"}, message)
        made, _ = chat_calls(stream(server, "/v1/chat/completions", chat))
        expect("the call in a stream", bool(made) == is_call, made)
        for required in ("required", {"type": "function", "function": {"name": "switch"}}):
            message = served(server, "required", "/v1/chat/completions", {
                **chat, "tool_choice": required})["choices"][0]["message"]
            expect("a required call", is_valid(**message["tool_calls"][0]["function"]), message)
        none = served(server, "none", "/v1/chat/completions", {**chat, "tool_choice": "none"})
        expect("no call", set(json.loads(none["choices"][0]["message"]["content"])) == {"t"}, none)
        tools = [{"name": name, "input_schema": SMALL} for name in NAMES]
        body = {"model": "m", "messages": [ASK], "tools": tools, "temperature": 0, "logit_bias": bias,
                "max_tokens": 200, "output_config": {"format": {"type": "json_schema",
                                                                "schema": FORM}}}
        kinds = ("tool_use", "function_call") if is_call else ("text", "message")
        block = first(served(server, "form", "/v1/messages", body)["content"], kinds)
        expect("form of messages", is_valid(block["name"], block["input"]) if is_call
               else set(json.loads(block["text"])) == {"t"}, block)
        tools = [{"type": "function", "name": name, "parameters": SMALL} for name in NAMES]
        body = {"input": "q", "tools": tools, "temperature": 0, "logit_bias": bias,
                "max_output_tokens": 200,
                "text": {"format": {"type": "json_schema", "name": "n", "schema": FORM}}}
        item = first(served(server, "form", "/v1/responses", body)["output"], kinds)
        expect("form of responses", is_valid(item["name"], item["arguments"]) if is_call
               else set(json.loads(item["content"][0]["text"])) == {"t"}, item)


def thinking(opening):
    """A template whose prompts open the thoughts."""
    return tiny_model.TEMPLATE.replace("<|im_start|>assistant\n'}}{% endif %}", opening + "'}}{% endif %}")


THINKING = [("<|im_start|>assistant\n<think>\n", []), ("<|im_start|>assistant\n<think>\n", ["<think>", "</think>"]),
            ("<|im_start|>assistant\n[THINK]", ["[THINK]", "[/THINK]"]),
            ("<|im_start|>assistant\n<|channel>thought\n", ["<|channel>", "<channel|>"])]


def check_budget(server, end):
    """Thoughts end after a number of tokens, under the names of other servers. The model's weights are
    random, so it does not end them."""
    path = "/v1/chat/completions"
    draw = {"temperature": 1.5, "seed": 3, "cache_prompt": False,
            "logit_bias": {str(server.tokens("\n")[0]): -100}}
    body = {"messages": [ASK], "max_tokens": 40, **draw}
    free = served(server, "free", path, body)["choices"][0]["message"]
    expect("thoughts without end", len(free["reasoning_content"]) > 20 and not free["content"], free)
    last = ""
    for n in (1, 7, 20):
        message = served(server, f"budget {n}", path, {**body, "reasoning_budget": n})["choices"][0]["message"]
        thoughts = message.get("reasoning_content", "")
        expect(f"{n} tokens of thoughts", free["reasoning_content"].startswith(thoughts.rstrip("\ufffd")) and
               len(last) <= len(thoughts) < len(free["reasoning_content"]) and message["content"], (message, free))
        last = thoughts
    for given in ({"thinking_budget": 7}, {"reasoning": {"max_tokens": 7}},
                  {"thinking": {"type": "enabled", "budget_tokens": 7}}, {"tools": TOOLS, "reasoning_budget": 7},
                  {"reasoning_format": "none", "reasoning_budget": 7}):
        message = served(server, str(given), path, {**body, **given})["choices"][0]["message"]
        events = stream(server, path, {**body, **given})
        content = "".join(choice["delta"].get("content") or "" for event in events
                          for choice in event.get("choices", []))
        expect(str(given), message["content"] and content == message["content"], (message, content))
        if "reasoning_format" in given:
            expect("the end is written", end in content, content)
    message = served(server, "0", path, {**body, "reasoning_budget": 0})["choices"][0]["message"]
    expect("no thoughts", "reasoning_content" not in message and message["content"], message)
    message = served(server, "-1", path, {**body, "reasoning_budget": -1})["choices"][0]["message"]
    expect("no limit", message == free, message)
    output = served(server, "responses", "/v1/responses", {
        "input": "q", "max_output_tokens": 40, **draw, "reasoning": {"max_tokens": 7}})["output"]
    expect("responses", [item["type"] for item in output] == ["reasoning", "message"], output)
    content = served(server, "messages", "/v1/messages", {
        "model": "m", "messages": [ASK], "max_tokens": 40, **draw,
        "thinking": {"type": "enabled", "budget_tokens": 7}})["content"]
    expect("messages", [block["type"] for block in content] == ["thinking", "text"], content)
    reply = server.post(path, {**body, "reasoning_budget": "x"})
    expect("not a number", reply.status == 400 and reply.json()["error"]["param"] == "reasoning_budget", reply.body)


def check_no_budget(server):
    """A template without thoughts: the field is refused by name, except where clients send it unasked."""
    for path, body in (("/v1/chat/completions", {"messages": [ASK], "reasoning_budget": 5}),
                       ("/v1/chat/completions", {"messages": [ASK], "thinking": {"budget_tokens": 5}}),
                       ("/v1/responses", {"input": "q", "reasoning": {"max_tokens": 5}})):
        reply = server.post(path, {**body, "temperature": 0})
        expect("refused by name", reply.status == 400 and reply.json()["error"]["param"] == "reasoning_budget",
               reply.body)
    served(server, "messages", "/v1/messages", {"model": "m", "messages": [ASK], "max_tokens": 2,
                                                "thinking": {"type": "enabled", "budget_tokens": 1024}})


def main():
    program = sys.argv[1]
    with Server(program, ["--log"]) as server:
        check_histories(server)
        check_written(server)
        check_no_budget(server)
        check_previous(server)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "strict.gguf")
        tiny_model.write_model(path, template=STRICT)
        with Server(program, model=path, directory=directory) as server:
            check_own_answers(server)
        path = os.path.join(directory, "typed.gguf")
        tiny_model.write_model(path, template=TYPED)
        with Server(program, model=path, directory=directory) as server:
            check_strict_templates(server)
        for i, (opening, words) in enumerate(THINKING):
            path = os.path.join(directory, f"think{i}.gguf")
            tiny_model.write_model(path, template=thinking(opening), words=words)
            with Server(program, model=path, directory=directory) as server:
                check_budget(server, words[-1] if words else "</think>")
        path = os.path.join(directory, "calls.gguf")
        tiny_model.write_model(path, words=[OPEN])
        with Server(program, model=path, directory=directory) as server:
            (word,), (brace,) = server.tokens(OPEN), server.tokens("{")
            check_lazy(server, {str(word): 100})
            check_cut_calls(server, {str(word): 100})
            check_form_and_tools(server, {str(word): 100}, {str(brace): 50})
    sys.exit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    main()
