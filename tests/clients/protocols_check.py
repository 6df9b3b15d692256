"""Checks the APIs of Anthropic, ollama and OpenAI's Responses over plain HTTP.

usage: protocols_check.py LOWKEY

Forms of replies, the order of events in streams, streams against whole replies, errors, limits,
disconnects, and requests in the shape in which well-known programs send them. A tiny random model is
enough for that. Needs only Python's standard library.
"""
import http.client
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from serve_process import HOST, Server, program_ranks  # noqa: E402

KEY = "secret-key"
CONTEXT = 2048
ASK = [{"role": "user", "content": "Name a river."}]
EXACT = {"temperature": 0, "cache_prompt": False}  # the same answer each time
SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
          "additionalProperties": False}
CHAT_TOOL = {"type": "function", "function": {"name": "light", "parameters": SCHEMA}}
failures = 0


def expect(what, good, seen=None):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}" + (f": {str(seen)[:600]}" if seen is not None else ""))


def connect(server, path, body, headers=()):
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("POST", path, json.dumps(body),
                       {"Authorization": f"Bearer {KEY}", **dict(headers)})
    return connection, connection.getresponse()


def stream(server, path, body):
    """All lines of a streamed reply, and its content type."""
    connection, reply = connect(server, path, body)
    text = reply.read().decode()
    connection.close()
    expect(f"{path}: status of a stream", reply.status == 200, text)
    return text, reply.headers["Content-Type"]


def events(text):
    """The events of a stream as pairs of name and data; comments are skipped."""
    out = []
    for part in text.split("\n\n"):
        lines = [line for line in part.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return out


def post(server, path, body):
    reply = server.post(path, body, timeout=60)
    return reply.status, reply.json()


# ---- Anthropic ----

def anthropic_body(**fields):
    return {"model": "any", "max_tokens": 24, "messages": ASK, **EXACT, **fields}


def check_anthropic_stream(what, made, whole):
    names = [name for name, data in made]
    expect(f"{what}: names of events", all(name == data["type"] for name, data in made), names)
    expect(f"{what}: first and last", names[0] == "message_start" and names[-2:] ==
           ["message_delta", "message_stop"], names)
    expect(f"{what}: start", made[0][1]["message"]["content"] == [] and
           made[0][1]["message"]["usage"]["input_tokens"] > 0, made[0])
    blocks, is_open = [], False
    for name, data in made:
        if name == "content_block_start":
            expect(f"{what}: start of a block", not is_open and data["index"] == len(blocks), data)
            blocks.append(dict(data["content_block"], json=""))
            is_open = True
        elif name == "content_block_delta":
            expect(f"{what}: delta in a block", is_open and data["index"] == len(blocks) - 1, data)
            if data["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += data["delta"]["text"]
            else:
                blocks[-1]["json"] += data["delta"]["partial_json"]
        elif name == "content_block_stop":
            expect(f"{what}: end of a block", is_open, data)
            is_open = False
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
            block.pop("id")
    expected = [{k: v for k, v in block.items() if k != "id"} for block in whole["content"]]
    expect(f"{what}: stream equals the whole", blocks == expected, (blocks, expected))
    delta = made[-2][1]
    expect(f"{what}: stop reason", delta["delta"]["stop_reason"] == whole["stop_reason"], delta)
    expect(f"{what}: usage", delta["usage"] == whole["usage"], (delta, whole))


def check_anthropic(server):
    path = "/v1/messages"
    status, whole = post(server, path, anthropic_body())
    text = whole["content"][0]["text"]
    expect("message", status == 200 and whole["type"] == "message" and text and
           whole["stop_reason"] in ("max_tokens", "end_turn"), whole)
    made, kind = stream(server, path, anthropic_body(stream=True))
    expect("content type of events", kind == "text/event-stream", kind)
    check_anthropic_stream("message", events(made), whole)

    tools = {"tools": [{"name": "light", "input_schema": SCHEMA}], "tool_choice": {"type": "any"},
             "max_tokens": 200}
    status, whole = post(server, path, anthropic_body(**tools))
    call = whole["content"][0]
    expect("tool_use", whole["stop_reason"] == "tool_use" and call["name"] == "light" and
           isinstance(call["input"]["on"], bool) and call["id"], whole)
    made, _ = stream(server, path, anthropic_body(stream=True, **tools))
    check_anthropic_stream("tool_use", events(made), whole)

    middle = text[len(text) // 2:][:2]
    _, whole = post(server, path, anthropic_body(stop_sequences=[middle]))
    expect("stop_sequence", whole["stop_reason"] == "stop_sequence" and
           whole["stop_sequence"] == middle and middle not in "".join(
               block["text"] for block in whole["content"]), (middle, whole))

    _, counted = post(server, path + "/count_tokens", {"messages": ASK, "model": "any"})
    _, whole = post(server, path, anthropic_body(max_tokens=1))
    expect("count_tokens", counted["input_tokens"] == whole["usage"]["input_tokens"],
           (counted, whole))

    for what, status, kind, body in [
            ("no max_tokens", 400, "invalid_request_error", {"messages": ASK}),
            ("bad temperature", 400, "invalid_request_error", anthropic_body(temperature="hot"))]:
        got, answer = post(server, path, body)
        expect(f"error of {what}", got == status and answer["type"] == "error" and
               answer["error"]["type"] == kind and answer["error"]["message"], answer)
    got, answer = post(server, path + "/batches", {})
    expect("error of an unknown path", got == 404 and answer["error"]["type"] == "not_found_error",
           answer)


def check_key(server):
    for headers, status in [({"x-api-key": KEY}, 200), ({"x-api-key": "wrong"}, 401), ({}, 401)]:
        connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
        connection.request("POST", "/v1/messages", json.dumps(anthropic_body(max_tokens=1)), headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        expect(f"x-api-key {headers}", reply.status == status, answer)
        if status == 401:
            expect("form of 401", answer["error"]["type"] == "authentication_error", answer)
        connection.close()


# ---- Responses ----

def response_body(**fields):
    return {"input": "Name a river.", "max_output_tokens": 24, **EXACT, **fields}


def without_ids(items):
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def check_response_stream(what, made, whole):
    names = [name for name, data in made]
    expect(f"{what}: names of events", all(name == data["type"] for name, data in made), names)
    expect(f"{what}: numbers", [data["sequence_number"] for _, data in made] ==
           list(range(len(made))), names)
    expect(f"{what}: first and last", names[:2] == ["response.created", "response.in_progress"] and
           names[-1] == "response." + whole["status"], names)
    texts, arguments = "", ""
    order = []
    for name, data in made[2:-1]:
        if name == "response.output_text.delta":
            texts += data["delta"]
        elif name == "response.function_call_arguments.delta":
            arguments += data["delta"]
        if not order or order[-1] != name:
            order.append(name)
        if name == "response.output_text.done":
            expect(f"{what}: text of done", data["text"] == texts, data)
        if name == "response.function_call_arguments.done":
            expect(f"{what}: arguments of done", data["arguments"] == arguments, data)
    of_text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    of_call = ["function_call_arguments.delta", "function_call_arguments.done"]
    inner = of_call if whole["output"][0]["type"] == "function_call" else of_text
    expect(f"{what}: order", order == [f"response.{name}" for name in
                                       ["output_item.added", *inner, "output_item.done"]], order)
    final = made[-1][1]["response"]
    expect(f"{what}: stream equals the whole", without_ids(final["output"]) ==
           without_ids(whole["output"]), (final["output"], whole["output"]))
    done = [data["item"] for name, data in made if name == "response.output_item.done"]
    expect(f"{what}: items", done == final["output"], done)
    expect(f"{what}: usage", final["usage"] == whole["usage"], final)


def check_responses(server):
    path = "/v1/responses"
    status, whole = post(server, path, response_body(metadata={"a": "b"}, instructions="Be brief."))
    expect("response", status == 200 and whole["object"] == "response" and
           whole["status"] == "incomplete" and
           whole["incomplete_details"] == {"reason": "max_output_tokens"} and
           whole["metadata"] == {"a": "b"} and whole["instructions"] == "Be brief." and
           whole["store"] is True and whole["error"] is None, whole)
    usage = whole["usage"]
    expect("usage", usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage)
    status, whole = post(server, path, response_body())
    made, kind = stream(server, path, response_body(stream=True))
    expect("content type of events", kind == "text/event-stream", kind)
    check_response_stream("response", events(made), whole)

    tools = {"tools": [{"type": "function", "name": "light", "parameters": SCHEMA},
                       {"type": "web_search"}],
             "tool_choice": {"type": "function", "name": "light"}, "max_output_tokens": 200}
    status, whole = post(server, path, response_body(**tools))
    call = whole["output"][0]
    expect("function_call", whole["status"] == "completed" and call["type"] == "function_call" and
           isinstance(json.loads(call["arguments"])["on"], bool) and call["call_id"], whole)
    expect("offered tools", whole["tools"] == tools["tools"][:1], whole["tools"])
    made, _ = stream(server, path, response_body(stream=True, **tools))
    check_response_stream("function_call", events(made), whole)

    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    status, whole = post(server, path, response_body(text=text, max_output_tokens=200))
    expect("text.format", isinstance(json.loads(whole["output"][0]["content"][0]["text"])["on"],
                                     bool) and whole["text"] == text, whole)
    status, answer = post(server, path, response_body(previous_response_id="resp_1"))
    expect("previous_response_id", status == 400 and
           answer["error"]["param"] == "previous_response_id", answer)


# ---- ollama ----

def ollama_body(**fields):
    options = {"num_predict": 24, "num_ctx": 100000, "temperature": 0, **fields.pop("options", {})}
    return {"model": "any:latest", "cache_prompt": False, "options": options, **fields}


def check_ollama_stream(what, text, whole, field):
    lines = [json.loads(line) for line in text.rstrip("\n").split("\n")]

    def content(line):
        return line["message"]["content"] if field == "message" else line["response"]

    expect(f"{what}: only the last line is done", [line["done"] for line in lines] ==
           [False] * (len(lines) - 1) + [True], lines)
    expect(f"{what}: stream equals the whole", "".join(map(content, lines)) == content(whole),
           (lines, whole))
    last = lines[-1]
    for name in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
                 "eval_count", "eval_duration"):
        expect(f"{what}: {name}", isinstance(last[name], int) and isinstance(whole[name], int), last)
    expect(f"{what}: counts", last["eval_count"] == whole["eval_count"] and
           last["prompt_eval_count"] == whole["prompt_eval_count"] and
           last["done_reason"] == whole["done_reason"] == "length", (last, whole))


def check_embeddings(server):
    status, one = post(server, "/api/embeddings", {"model": "any", "prompt": "river"})
    got, several = post(server, "/api/embed", {"model": "any", "input": ["river", "light"]})
    last, openai = post(server, "/v1/embeddings", {"input": ["river", "light"]})
    if program_ranks.RANKS > 1:
        expect("embeddings of ranks", status == got == last == 501, (one, several, openai))
        return
    expect("embeddings", status == got == last == 200 and
           one["embedding"] == several["embeddings"][0] and
           several["embeddings"] == [item["embedding"] for item in openai["data"]] and
           several["prompt_eval_count"] == openai["usage"]["prompt_tokens"], (one, several, openai))
    for path, body in [("/api/embed", {"model": "any"}), ("/api/embed", {"input": {"a": 1}}),
                       ("/api/embeddings", {"prompt": ["a", "b"]})]:
        status, answer = post(server, path, body)
        expect(f"error of {path} {body}", status == 400 and isinstance(answer["error"], str), answer)


def check_ollama(server):
    for path, field, more in [("/api/chat", "message", {"messages": ASK}),
                              ("/api/generate", "response", {"prompt": "Name a river."}),
                              ("/api/generate", "response", {"prompt": "A river", "raw": True})]:
        status, whole = post(server, path, ollama_body(stream=False, **more))
        expect(f"{path}", status == 200 and whole["done"] and whole["created_at"], whole)
        made, kind = stream(server, path, ollama_body(**more))
        expect("content type of lines", kind == "application/x-ndjson", kind)
        check_ollama_stream(path, made, whole, field)
    status, chat = post(server, "/api/chat", ollama_body(
        stream=False, messages=ASK, format=SCHEMA, options={"num_predict": 200}))
    expect("format", isinstance(json.loads(chat["message"]["content"])["on"], bool), chat)
    for path, field in [("/api/chat", "message"), ("/api/generate", "response")]:
        status, answer = post(server, path, {"model": "any", "keep_alive": 0})
        expect(f"{path} loads", status == 200 and answer["done_reason"] == "load" and
               field in answer, answer)

    check_embeddings(server)
    models = server.ask("GET", "/v1/models").json()["data"]
    tags = server.ask("GET", "/api/tags").json()["models"]
    expect("tags", tags[0]["name"] == tags[0]["model"] == models[0]["id"], tags)
    expect("ps", server.ask("GET", "/api/ps").json()["models"][0]["context_length"] == CONTEXT)
    expect("version", server.ask("GET", "/api/version").json()["version"].count(".") == 2)
    expect("HEAD /", server.ask("HEAD", "/").status == 200)
    status, shown = post(server, "/api/show", {"model": "any"})
    arch = shown["model_info"]["general.architecture"]
    expect("show", status == 200 and shown["model_info"][arch + ".context_length"] == CONTEXT and
           "completion" in shown["capabilities"] and shown["details"]["family"] == arch, shown)
    for method, path, status in [("POST", "/api/pull", 501), ("POST", "/api/create", 501),
                                 ("DELETE", "/api/delete", 501), ("GET", "/api/chat", 405),
                                 ("POST", "/api/blobs", 404)]:
        reply = server.ask(method, path, {"model": "any"})
        expect(f"{method} {path}", reply.status == status and
               isinstance(reply.json()["error"], str), reply.body)
    for body in [{"prompt": 5}, {"prompt": "a", "images": ["eA=="]}, {"prompt": "a", "format": 5},
                 {"prompt": "a", "options": {"temperature": "hot"}}]:
        status, answer = post(server, "/api/generate", body)
        expect(f"error of {body}", status == 400 and isinstance(answer["error"], str), answer)


# ---- requests in the shape of programs ----

def claude_code_tools(n, size):
    return [{"name": f"Tool{i}", "description": "Does something. " * (size // 16),
             "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#",
                              "type": "object", "additionalProperties": False,
                              "properties": {"path": {"type": "string"}}}} for i in range(n)]


PROGRAMS = [
    ("Claude Code", "/v1/messages?beta=true", {
        "model": "claude-any", "max_tokens": 8, "stream": True, "temperature": 1,
        "metadata": {"user_id": "user_1"}, "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "system": [{"type": "text", "text": "You are an agent."},
                   {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": claude_code_tools(3, 40),
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>x</system-reminder>"},
            {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]}),
    ("Codex", "/v1/responses", {
        "model": "any", "instructions": "You are an agent.", "stream": True, "store": False,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": None,
        "parallel_tool_calls": False, "tool_choice": "auto", "text": {"verbosity": "low"},
        "max_output_tokens": 8,
        "tools": [{"type": "function", "name": "shell", "description": "d", "strict": False,
                   "parameters": SCHEMA}, {"type": "web_search", "external_web_access": False},
                  {"type": "namespace", "name": "mcp", "tools": []}],
        "input": [{"type": "message", "role": "developer",
                   "content": [{"type": "input_text", "text": "rules"}]},
                  {"type": "message", "role": "user",
                   "content": [{"type": "input_text", "text": "hi"}]}]}),
    ("Open WebUI, ollama", "/api/chat", {
        "model": "any:latest", "stream": True, "messages": ASK, "keep_alive": "5m",
        "options": {"num_predict": 8, "num_ctx": 2048, "temperature": 0.7}}),
    ("Continue, ollama chat", "/api/chat", {
        "model": "any", "stream": True, "messages": ASK, "keep_alive": 1800,
        "options": {"num_predict": 8, "num_ctx": 2048, "stop": ["<|x|>"], "mirostat": 0,
                    "temperature": 0.1, "top_p": 0.9, "top_k": 40}}),
    ("Continue, ollama completion", "/api/generate", {
        "model": "any", "prompt": "def f(", "raw": True, "stream": True, "keep_alive": 1800,
        "options": {"num_predict": 8, "temperature": 0.01}}),
    ("aider, ollama_chat", "/api/chat", {
        "model": "any", "messages": ASK, "stream": True,
        "options": {"num_predict": 8, "temperature": 0, "num_ctx": 8192}}),
    ("n8n, Responses", "/v1/responses", {
        "model": "any", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "max_output_tokens": 8, "stream": False, "truncation": "auto", "user": "u"}),
]


def check_programs(server, model):
    for name, path, body in PROGRAMS:
        if path == "/v1/responses":
            body = dict(body, model=model)
        connection, reply = connect(server, path, body)
        text = reply.read().decode()
        connection.close()
        expect(name, reply.status == 200 and "error\":{" not in text, text)


# ---- limits, errors in streams, disconnects ----

def check_limits(server):
    body = anthropic_body(tools=claude_code_tools(40, 1000), system="You are an agent. " * 200)
    status, answer = post(server, "/v1/messages", body)
    message = answer["error"]["message"]
    expect("tools larger than the context", status == 400 and str(CONTEXT) in message and
           "token" in message, answer)
    status, answer = post(server, "/v1/messages", anthropic_body(tools=claude_code_tools(200, 16)))
    expect("too many tools", status == 400 and "128" in answer["error"]["message"], answer)
    large = "x" * (9 << 20)
    for path, body in [("/v1/messages", anthropic_body(system=large)),
                       ("/v1/responses", response_body(instructions=large)),
                       ("/api/generate", ollama_body(prompt=large))]:
        status, answer = post(server, path, body)
        expect(f"{path}: too large a body", status == 413 and answer["error"], (status, answer))
    for path, body in [("/v1/messages", anthropic_body(max_tokens=10**9)),
                       ("/v1/messages", anthropic_body(messages=[])),
                       ("/v1/responses", response_body(input=[[[]]])),
                       ("/api/chat", ollama_body(messages=[None]))]:
        status, answer = post(server, path, body)
        expect(f"{path}: {str(body)[:60]}", status in (200, 400), (status, answer))


# Streams that no kernel buffers: the answers are not complete before their clients read them.
LONG_CONTEXT, N_LONG = 65536, 60000
LONG = [("/v1/messages", anthropic_body(stream=True, max_tokens=N_LONG, ignore_eos=True)),
        ("/v1/responses", response_body(stream=True, max_output_tokens=N_LONG, ignore_eos=True)),
        ("/api/chat", ollama_body(messages=ASK, ignore_eos=True,
                                  options={"num_predict": N_LONG, "temperature": 1}))]


def busy_slots(server):
    return sum(slot["state"] in ("prefill", "decoding")
               for slot in server.ask("GET", "/slots").json()["slots"])


def check_disconnect(server):
    """A client that leaves ends its answer: its session becomes idle long before the end."""
    for path, body in LONG:
        connection, reply = connect(server, path, body)
        reply.read(400)
        connection.close()
        end = time.monotonic() + 20
        while busy_slots(server) and time.monotonic() < end:
            time.sleep(0.05)
        expect(f"{path}: the answer ends with its client", busy_slots(server) == 0)


def check_stopping(server):
    """Streams that the end of the server cuts end with an error in the form of their API."""
    texts = {}

    def read(path, reply):
        try:
            texts[path] += reply.read().decode()
        except (OSError, http.client.HTTPException):
            pass

    threads, connections = [], []
    for path, body in LONG:
        connection, reply = connect(server, path, body)
        connections.append(connection)
        texts[path] = reply.read(400).decode()
        threads.append(threading.Thread(target=read, args=(path, reply)))
    for thread in threads:
        thread.start()
    server.stop()
    for thread in threads:
        thread.join()
    last = texts["/v1/messages"].rstrip().split("\n")[-2:]
    expect("error in a stream of messages", last[0] == "event: error" and json.loads(
        last[1].removeprefix("data: "))["error"]["type"] == "overloaded_error", last)
    last = texts["/v1/responses"].rstrip().split("\n")[-2:]
    expect("error in a stream of responses", last[0] == "event: response.failed" and json.loads(
        last[1].removeprefix("data: "))["response"]["error"]["code"] == "stopping", last)
    last = texts["/api/chat"].rstrip().split("\n")[-1]
    expect("error in lines", "error" in json.loads(last), last)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with Server(sys.argv[1], ["-t", "1", "-c", str(CONTEXT)], keys=KEY + "\n",
                sessions=False) as server:
        model = server.ask("GET", "/v1/models").json()["data"][0]["id"]
        check_anthropic(server)
        check_key(server)
        check_responses(server)
        check_ollama(server)
        check_programs(server, model)
        check_limits(server)
        expect("the server ends without an error", server.stop()[1] == 0, server.messages()[-2000:])
    with Server(sys.argv[1], ["-t", "1", "-c", str(LONG_CONTEXT)], keys=KEY + "\n",
                sessions=False) as server:
        check_disconnect(server)
        check_stopping(server)
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
