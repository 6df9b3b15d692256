"""Checks requests in the forms that clients send: paths, bodies, histories, fields.

usage: wire_check.py LOWKEY

A tiny random model is enough. Each kind of request was refused by some server, so that its client
could not go on.
"""
import http.client
import json
import os
import sys
import tempfile

import tiny_model
from serve_process import HOST, Server

ASK = {"role": "user", "content": "q"}
SHORT = {"max_tokens": 2, "temperature": 0}
CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"
failures = 0


def expect(what, good, seen=None):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}" + (f": {str(seen)[:900]}" if seen is not None else ""))


def send(server, path, body, headers=()):
    """(status, headers, JSON) of a body that may be bytes."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json", **dict(headers)})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    try:
        return reply.status, reply.headers, json.loads(text)
    except ValueError:
        return reply.status, reply.headers, {"text": text}


def served(server, what, path, body):
    """The reply, and the list of what was ignored."""
    status, headers, reply = send(server, path, body)
    expect(what, status == 200, reply)
    return reply, headers.get("X-Lowkey-Ignored", "")


def prompt(server, body):
    """What the template makes of a chat."""
    return send(server, "/apply-template", body)[2].get("prompt", "")


# ---- paths ----

def check_paths(server):
    """Base URLs with "/v1" twice or not at all, with a name of an API, or with slashes too many."""
    bodies = {
        CHAT: {"messages": [ASK], **SHORT}, "/v1/completions": {"prompt": "q", **SHORT},
        RESPONSES: {"input": "q", "max_output_tokens": 2}, MESSAGES: {"messages": [ASK], **SHORT},
        OLLAMA: {"messages": [ASK], "stream": False, "options": {"num_predict": 2}}}
    for meant, given in (
            (CHAT, "/v1/chat/completions/"), (CHAT, "//v1/chat/completions"), (CHAT, "/v1/v1/chat/completions"),
            (CHAT, "/openai/v1/chat/completions"), (CHAT, "/api/v1/chat/completions"),
            (CHAT, "/api/v0/chat/completions"), (CHAT, "/chat/completions"),
            (CHAT, "/v1/chat/completions?api-version=1"), ("/v1/completions", "/v1/completions/"),
            (RESPONSES, "/responses"), (RESPONSES, "/v1/responses/"), (RESPONSES, "/openai/responses"),
            (MESSAGES, "/messages"), (MESSAGES, "/anthropic/v1/messages"), (MESSAGES, "/v1/v1/messages?beta=true"),
            (OLLAMA, "/v1/api/chat"), (OLLAMA, "/api/chat/")):
        served(server, given, given, bodies[meant])
    for path in ("/v1/models/", "/models", "/v1/v1/models", "/api/v0/models", "/api/v1/models",
                 "/openai/models", "/api/tags/", "/v1/api/tags", "/props/", "/v1/props", "/health/"):
        reply = server.ask("GET", path)
        expect(f"GET {path}", reply.status == 200, reply.body)
    for path in ("/v1/models/tiny", "/models/tiny/", "/api/v0/models/tiny", "/v1/models/org/tiny"):
        expect(f"GET {path}", server.ask("GET", path).json().get("id") == "tiny")
    for path in ("/v1", "/v1/", "/v1/v1", "/openai", "/v1/rerank", "/x/v1/models", "/v1/chat"):
        expect(f"GET {path}", server.ask("GET", path).status == 404)
    expect("a method that a path does not have", server.ask("GET", "/v1/v1/chat/completions").status == 405)
    forms = (("/v1/v1/messages", "type"), ("/anthropic/v1/messages", "type"), ("/openai/v1/chat/completions", "error"))
    for path, field in forms:
        status, _, reply = send(server, path, {})
        expect(f"an error of {path} in its form", status == 400 and field in reply, reply)


def check_keys(program):
    """A path in another form needs the same key."""
    with Server(program, keys="secret-key\n", sessions=False) as server:
        for path in (CHAT, "/v1/v1/chat/completions", "//v1/chat/completions", "/openai/chat/completions",
                     "/messages", "/v1//slots", "/x"):
            reply = send(server, path, {"messages": [ASK], **SHORT})
            expect(f"no key: {path}", reply[0] == 401, reply)
            reply = send(server, path, {"messages": [ASK], **SHORT}, {"x-api-key": "secret-key"})
            expect(f"with a key: {path}", reply[0] != 401, reply)


# ---- bodies ----

def check_bodies(server):
    """Bytes, escapes and numbers that the output of programs has, and JSON libraries do not take."""
    texts = {
        "NUL": (b"a\\u0000b", "a\ufffdb"), "half of a pair": (b"a\\ud83d b", "a\ufffd b"),
        "latin 1": (b"caf\xe9!", "caf\ufffd!"), "surrogates as UTF-8": (b"a\xed\xa0\xbd\xed\xb8\x80b", "a\ufffdb"),
        "cut": (b"a\xf0\x9f\x98", "a\ufffd"), "a run": (b"a\xff\xfe\xfd\xe2\x82\xacb", "a\ufffd\u20acb"),
        "characters": ("é€😀".encode(), "é€😀"), "a pair": (b"\\ud83d\\ude00", "😀"),
        "digits in a text": (b"99999999999999999999 1e999 \\\\", "99999999999999999999 1e999 \\")}
    for what, (sent, seen) in texts.items():
        body = b'{"messages": [{"role": "user", "content": "' + sent + b'"}]}'
        status, _, reply = send(server, "/apply-template", body)
        expect(what, status == 200 and f"user\n{seen}<|im_end|>" in reply["prompt"], reply)
    for number, seen in (("18446744073709551615", 18446744073709551615.0), ("-9223372036854775808", -2**63),
                         ("9223372036854775807", 2**63 - 1), ("9223372036854775808", 2.0**63),
                         ("1e999", sys.float_info.max), ("-1.5E+400", -sys.float_info.max), ("9" * 500, sys.float_info.max),
                         ("1234567890123456789", 1234567890123456789), ("1e-400", 0.0), ("0.1234567890123456789", 0.1234567890123456789)):
        tools = ('[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": '
                 '{"a": {"type": "integer", "maximum": NUMBER}}}}}]').replace("NUMBER", number)
        body = '{"messages": [{"role": "user", "content": "q"}], "tools": ' + tools + '}'
        text = prompt(server, body.encode())
        got = text.split('"maximum":')[1].split("}")[0] if '"maximum":' in text else "0.5"
        expect(number, float(got) == seen if isinstance(seen, float) else int(got) == seen, text)
        body = ('{"max_tokens": 2, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ['
                '{"type": "tool_use", "id": "c", "name": "f", "input": {"a": NUMBER}}]}, {"role": "user", "content": '
                '[{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}]}').replace("NUMBER", number)
        served(server, f"{number} in a call", MESSAGES, body.encode())
    for seed in ("18446744073709551615", "123456789012345678901234567890", "-5", "7"):
        body = b'{"prompt": "q", "max_tokens": 8, "cache_prompt": false, "temperature": 1, "seed": ' + seed.encode() + b"}"
        first, again = (served(server, f"seed {seed}", "/v1/completions", body)[0]["choices"][0] for _ in range(2))
        expect(f"seed {seed} repeats", first == again, (first, again))
    chat = json.dumps({"messages": [ASK], **SHORT}).encode()
    for what, body in {"a byte order mark": b"\xef\xbb\xbf" + chat, "lines after it": chat + b"\r\n\r\n",
                       "a field twice": chat[:-1] + b', "max_tokens": 1}'}.items():
        served(server, what, CHAT, body)
    for what, body in {"cut": chat[:-1], "a comma": chat[:-1] + b",}", "two": chat + chat, "a list": b"[]",
                       "nothing": b"", "UTF-16": chat.decode().encode("utf-16"), "NaN": b'{"temperature": NaN}',
                       "1.5 seeds": chat[:-1] + b', "seed": 1.5}', "bytes outside of texts": b'{"a": \xff}'}.items():
        status, _, reply = send(server, CHAT, body)
        expect(f"refused: {what}", status == 400 and reply.get("error", {}).get("message"), reply)


# ---- histories ----

def calls(*functions):
    return {"role": "assistant", "tool_calls": [{"id": f"c{i}", "type": "function", "function": one}
                                                for i, one in enumerate(functions)]}


def nested(depth):
    return {"a": nested(depth - 1)} if depth else {}


def check_chats(server):
    """Messages that other programs wrote: none ends a conversation, and their texts are seen."""
    for what, message, seen in (
            ("an object", {"role": "user", "content": {"type": "text", "text": "see this"}}, "user\nsee this<"),
            ("a value", {"role": "user", "content": {"a": 1}}, 'user\n{"a":1}<'),
            ("a number", {"role": "user", "content": 5}, "user\n5<"),
            ("a text that is an object", {"role": "user", "content": [
                {"type": "text", "text": {"value": "see this", "annotations": []}}]}, "user\nsee this<"),
            ("a part without a text", {"role": "user", "content": [{"type": "text"}, {"type": "text", "text": "b"}]}, "user\nb<"),
            ("parts that are null", {"role": "user", "content": [None, "a", None]}, "user\na<"),
            ("a result with a type", {"role": "tool", "tool_call_id": "c", "content": {"type": "ok", "n": 1}}, '"n":1'),
            ("a role of another program", {"role": "human", "content": "see this"}, "user\nsee this<"),
            ("an unknown role", {"role": "critic", "content": "see this"}, "user\nsee this<"),
            ("no role", {"content": "see this"}, "user\nsee this<"),
            ("a text", "see this", "user\nsee this<"), ("null", None, ""),
            ("a call without a name", calls({"name": None, "arguments": "{}"}), '"name": "unknown"'),
            ("a call without a function", {"role": "assistant", "tool_calls": [{"id": "x", "type": "function"}]}, '"unknown"'),
            ("a call in its older form", {"role": "assistant", "tool_calls": [{"name": "ls", "arguments": {"a": 1}}]}, '"name": "ls", "arguments": {"a": 1}'),
            ("calls that are texts", {"role": "assistant", "content": "see this", "tool_calls": ["x"]}, "assistant\nsee this<"),
            ("arguments in arguments", calls({"name": "f", "arguments": json.dumps(json.dumps({"a": 1}))}), '"f"'),
            ("arguments that are a number", calls({"name": "f", "arguments": 5}), '"arguments": {"input": 5}'),
            ("PHP's empty object", calls({"name": "f", "arguments": []}), '"arguments": {}'),
            ("PHP's empty object as a text", calls({"name": "f", "arguments": "[]"}), '"arguments": {}'),
            ("arguments that are deep", calls({"name": "f", "arguments": nested(300)}), '"arguments": {"input": "{'),
            ("arguments that are a deep text", calls({"name": "f", "arguments": json.dumps(nested(300))}), '"arguments": {"input": "{'),
            ("arguments that are not deep", calls({"name": "f", "arguments": nested(50)}), '"arguments": {"a": {"a": {')):
        body = {"messages": [ASK, message, ASK]}
        served(server, what, CHAT, {**body, **SHORT})
        text = prompt(server, body)
        expect(f"{what} is seen", seen in text and text.count("user\nq<") == 2, text)
    ignored = served(server, "role", CHAT, {"messages": [ASK, {"role": "critic", "content": "a"}], **SHORT})[1]
    expect("an unknown role is listed", ignored == "role critic", ignored)
    deep = {"type": "function", "function": {"name": "f", "parameters": nested(300)}}
    ignored = served(server, "a deep tool", CHAT, {"messages": [ASK], "tools": [deep], **SHORT})[1]
    expect("parameters of a deep tool are listed", ignored == "parameters of f", ignored)
    for messages in ([None], [], [7], "q"):
        expect(f"messages {messages}", send(server, CHAT, {"messages": messages, **SHORT})[0] == 400)


def check_other_histories(server):
    """The same in the other APIs."""
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    for what, message in (
            ("null", None), ("a text", "a"), ("a number", {"role": "user", "content": 5}),
            ("an unknown role", {"role": "ctx", "content": "a"}), ("no text", {"role": "user", "content": [{"type": "text"}]}),
            ("a text that is null", {"role": "user", "content": [{"type": "text", "text": None}, None]}),
            ("a call without a name", {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "input": 5}]}),
            ("a call without a result", use), ("a result before its call", {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "z", "content": [{"type": "image"}], "is_error": True}]}),
            ("thoughts of another model", {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "h", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]})):
        served(server, f"messages: {what}", MESSAGES, {"messages": [ASK, message, ASK], **SHORT})
    call = {"type": "function_call", "call_id": "c", "arguments": "{}"}
    for what, item in (
            ("null", None), ("a text", "a"), ("a message without a role", {"type": "message", "content": "a"}),
            ("a call without a name", call), ("a result that is null", {"type": "function_call_output", "call_id": "c"}),
            ("thoughts that are encrypted", {"type": "reasoning", "summary": None, "encrypted_content": "x"}),
            ("a content that is null", {"type": "message", "role": "user", "content": None}),
            ("an unknown role", {"role": "critic", "content": "a"})):
        served(server, f"responses: {what}", RESPONSES, {"input": [ASK, item, ASK], "max_output_tokens": 2})
    rules = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]}]
    counts = [served(server, "instructions", RESPONSES, {"input": "q", "instructions": one, "max_output_tokens": 2})[0]["usage"]["input_tokens"]
              for one in (rules, "rules")]
    expect("instructions that are items", counts[0] == counts[1], counts)
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    for what, message in (
            ("null", None), ("a text", "a"), ("parts", {"role": "assistant", "content": parts}),
            ("parts and calls", {"role": "assistant", "content": parts, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
            ("arguments that are a text", {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
            ("an empty call", {"role": "assistant", "tool_calls": [{}]}), ("no role", {"content": "a"})):
        served(server, f"ollama: {what}", OLLAMA, {"messages": [ASK, message, ASK], "stream": False, "options": {"num_predict": 2}})


# ---- fields ----

def check_fields(server):
    """Values that say nothing, and forms of other servers."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for body in ({"stop": [""]}, {"stop": [None, ""]}, {"stop": None}, {"response_format": {}}, {"prediction": {"type": "content", "content": "a"}},
                 {"tools": [tool], "tool_choice": None}, {"tools": [], "tool_choice": {"type": "auto"}}, {"web_search_options": {}},
                 {"logprobs": False, "top_logprobs": 0}, {"functions": [], "function_call": "auto"}):
        _, ignored = served(server, body, CHAT, {"messages": [ASK], **SHORT, **body})
        expect(f"{body} says nothing", not ignored, ignored)
    on = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
    for form, keys in (({"type": "json_schema", "json_schema": {"name": "n", "strict": True}}, None),
                       ({"type": "json_schema", "json_schema": {"name": "n", "schema": None}}, None),
                       ({"type": "json_object", "value": on}, ["on"]), ({"type": "json", "value": on}, ["on"]),
                       ({"type": "json_schema", "value": on}, ["on"]), ({"type": "json_object", "schema": on}, ["on"])):
        body = {"messages": [ASK], "max_tokens": 60, "temperature": 0, "response_format": form, "seed": 3}
        text = served(server, form, CHAT, body)[0]["choices"][0]["message"]["content"]
        expect(f"{form}", text.startswith("{") and (keys is None or list(json.loads(text)) == keys), text)
    form = {"format": {"type": "json_schema", "name": "n", "strict": True}}
    served(server, form, RESPONSES, {"input": "q", "max_output_tokens": 2, "text": form})
    served(server, "n_predict -2", "/completion", {"prompt": "q", "n_predict": -2, "grammar": "root ::= \"ab\"", "stop": [""]})
    for body in ({"response_format": {"type": "grammar", "grammar": "root ::= \"a\""}}, {"response_format": {"a": 1}},
                 {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
                 {"response_format": {"type": "json_object", "schema": 5}}, {"stop": [5]}):
        status, _, reply = send(server, CHAT, {"messages": [ASK], **SHORT, **body})
        expect(f"refused by name: {body}", status == 400 and reply["error"]["param"] in body, reply)


# ---- schemas ----

def check_schemas(server):
    """Schemas of tools as their servers write them: a call of each can be required."""
    def required(parameters, n=2):
        tool = {"type": "function", "function": {"name": "f", **({} if parameters is None else {"parameters": parameters})}}
        return {"messages": [ASK], "tools": [tool], "tool_choice": "required", "max_tokens": n, "temperature": 0}

    def one(**schema):
        return {"type": "object", "properties": {"a": schema}, "required": ["a"]}

    for schema in (one(type="STRING"), one(type="string", nullable=True), one(type="number", minimum=0, exclusiveMinimum=True),
                   one(type="array", items=[{"type": "string"}, {"type": "number"}]), one(type="string", maxLength=10**6),
                   one(type="array", prefixItems=[{"type": "string"}]), one(type="integer", format="uint64", minimum=0, maximum=2**64 - 1),
                   one(type="array", items={"type": "string"}, uniqueItems=False, maxItems=10**6), one(type="float"),
                   one(type="string", example="x", xml={}, **{"x-order": 1}), one(type=None), {"type": "object", "properties": []},
                   {**one(type="string"), "required": ["a", "a", "b"]}, {**one(type="string"), "unevaluatedProperties": False},
                   {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "string"}},
                   {"type": "object", "properties": {"a": {"type": "string", "required": True}}, "required": None},
                   {**one(**{"$ref": "#/components/schemas/A"}), "components": {"schemas": {"A": {"type": "string"}}}}):
        served(server, schema, CHAT, required(schema))
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        served(server, f"form {schema}", CHAT, {"messages": [ASK], **SHORT, "response_format": form})
    for parameters in (None, {}, {"type": "object", "properties": {}}, {"type": "object", "properties": {}, "required": []}, []):
        message = served(server, parameters, CHAT, required(parameters, 90))[0]["choices"][0]["message"]
        expect(f"no arguments of {parameters}", [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{}], message)
    for keyword, schema in (("uniqueItems", one(type="array", uniqueItems=True)), ("pattern", one(type="string", pattern="(?=a)")),
                            ("not", {"not": {"type": "null"}}), ("if", {**one(type="string"), "if": {}, "then": {}})):
        status, _, reply = send(server, CHAT, required(schema))
        expect(f"{keyword} is named", status == 400 and keyword in reply["error"]["message"] and
               reply["error"]["param"] == "tools", reply)
        served(server, f"{keyword} under auto", CHAT, {**required(schema), "tool_choice": "auto"})


# ---- thoughts ----

OPEN = "<tool_call>"
TOOL = {"type": "function", "function": {"name": "light", "parameters": {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}}}
# The prompt's end, words that are tokens, the end of thoughts.
THINKING = (("<|im_start|>assistant\n<think>\n", "</think>"), ("<|im_start|>assistant\n[THINK]", "[/THINK]"),
            ("<|im_start|>assistant\n<|channel>thought\n", "<channel|>"))


def check_calls_in_thoughts(program, directory):
    """A model that thinks of calls: the word that begins one means nothing in thoughts."""
    for i, (opening, end) in enumerate(THINKING):
        path = os.path.join(directory, f"thinking{i}.gguf")
        template = tiny_model.TEMPLATE.replace("<|im_start|>assistant\n'}}{% endif %}", opening + "'}}{% endif %}")
        tiny_model.write_model(path, template=template, words=[OPEN, end])
        with Server(program, model=path, directory=directory, sessions=False) as server:
            bias = {str(server.tokens(OPEN)[0]): 100}
            body = {"messages": [ASK], "tools": [TOOL], "temperature": 0, "max_tokens": 120, "logit_bias": bias}
            message = served(server, "thoughts", CHAT, {**body, "max_tokens": 30})[0]["choices"][0]["message"]
            expect(f"{end}: thoughts are free", message["reasoning_content"] == 30 * OPEN, message)
            message = served(server, "budget", CHAT, {**body, "reasoning_budget": 5})[0]["choices"][0]["message"]
            expect(f"{end}: a call after them", message["reasoning_content"] == 5 * OPEN and all(
                json.loads(call["function"]["arguments"])["on"] in (True, False)
                for call in message["tool_calls"][:-1]) and len(message["tool_calls"]) > 1, message)


def count_thoughts(server, path, body):
    """Tokens of thoughts, which a random model without "\\n" does not end."""
    reply = served(server, body, path, body)[0]
    text = reply["choices"][0]["message"].get("reasoning_content", "") if path == CHAT else \
        reply["message"].get("thinking", "") if path == OLLAMA else \
        "".join(block.get("thinking", "") for block in reply["content"])
    return len(server.tokens(text)) if text else 0


def check_efforts(program, directory):
    """An effort is a budget for a template that does not know efforts."""
    path = os.path.join(directory, "efforts.gguf")
    tiny_model.write_model(path, template=tiny_model.TEMPLATE.replace(
        "<|im_start|>assistant\n'}}{% endif %}", "<|im_start|>assistant\n<think>'}}{% endif %}"), words=["</think>", "ab"])
    with Server(program, ["-c", "4k"], model=path, directory=directory, sessions=False) as server:
        bias = {str(server.tokens("ab")[0]): 100}
        base = {"messages": [ASK], "temperature": 0, "logit_bias": bias}
        for effort, n in (("minimal", 512), ("low", 1024), ("high", 1200), ("none", 1200)):
            got = count_thoughts(server, CHAT, {**base, "max_tokens": 1200, "reasoning_effort": effort})
            expect(f"effort {effort}", got == n, got)
        got = count_thoughts(server, CHAT, {**base, "max_tokens": 1200, "reasoning_effort": "low", "reasoning_budget": 7})
        expect("a budget counts more", got == 7, got)
        got = count_thoughts(server, MESSAGES, {**base, "max_tokens": 1200, "output_config": {"effort": "low"}})
        expect("effort of messages", got == 1024, got)
        body = {"messages": [ASK], "stream": False, "options": {"temperature": 0, "num_predict": 1200, "seed": 1}, "think": "low"}
        reply = served(server, "ollama", OLLAMA, body)[0]["message"]
        expect("think of ollama", reply["thinking"] and reply["content"], reply)
        shown = send(server, "/api/show", {"model": "m"})[2]
        expect("a model that thinks", shown["capabilities"] == ["completion", "tools", "thinking"], shown["capabilities"])


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "tiny.gguf")
        tiny_model.write_model(path)
        with Server(program, ["--log", "-c", "8k"], model=path, directory=directory) as server:
            for check in (check_paths, check_bodies, check_chats, check_other_histories, check_fields, check_schemas):
                check(server)
            expect("the server ends well", server.stop()[1] == 0, server.messages()[-900:])
        check_calls_in_thoughts(program, directory)
        check_efforts(program, directory)
    check_keys(program)
    sys.exit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    main()
