#!/usr/bin/env python3
"""Checks what agents and other clients need of a server, with a tiny random model.

usage: agents_check.py LOWKEY [NAME...]    only the checks NAME, if any is given
"""
import http.client
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

import tiny_model
from serve_process import Server

failures = 0
ASK = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}


def expect(what, good, seen=None):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}" + (f": {str(seen)[:700]}" if seen is not None else ""), flush=True)


def post(server, path, body):
    """Status, headers, and the body as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.headers, json.loads(text) if text else {}


# ---- fields of other servers ----

# Means a field of this server: (field, value, the same request in its words)
MAPPED = [
    ("repetition_penalty", 1.9, {"repeat_penalty": 1.9}), ("rep_pen", 1.9, {"repeat_penalty": 1.9}),
    ("max_new_tokens", 2, {"max_tokens": 2}), ("n_predict", 2, {"max_tokens": 2}),
    ("max_completion_tokens", 2, {"max_tokens": 2}), ("num_predict", 2, {"max_tokens": 2}),
    ("random_seed", 3, {"seed": 3}), ("do_sample", False, {"temperature": 0}),
    ("guided_choice", ["yes", "no\n\"2\""], {"grammar": 'root ::= "yes" | "no\\n\\"2\\""'}),
    ("guided_regex", "[ab]{3}|x\\\\\"", {"grammar": 'root ::= [ab] [ab] [ab] | "x\\\\\\""'}),
    ("regex", "^[0-9]{2}-$", {"grammar": 'root ::= [0-9] [0-9] "-"'}),
    ("guided_grammar", 'root ::= "zz"', {"grammar": 'root ::= "zz"'}),
    ("ebnf", 'root ::= "zz"', {"grammar": 'root ::= "zz"'}),
    ("guided_json", {"type": "integer", "minimum": 7, "maximum": 7},
     {"json_schema": {"type": "integer", "minimum": 7, "maximum": 7}}),
    ("guided_json", '{"const": 12}', {"json_schema": {"const": 12}}),
    ("structured_outputs", {"json": {"const": "q"}}, {"json_schema": {"const": "q"}}),
    ("structured_outputs", {"regex": "u{4}"}, {"grammar": 'root ::= "uuuu"'}),
    ("structured_outputs", {"choice": ["k"]}, {"grammar": 'root ::= "k"'}),
    ("structured_outputs", {"grammar": 'root ::= "g"'}, {"grammar": 'root ::= "g"'}),
    ("structured_outputs", {"json_object": True}, {"response_format": {"type": "json_object"}}),
    ("stop_sequences", ["e"], {"stop": ["e"]}),
]
# Refused by name, unless the second value is given.
LACKING = [
    ("min_tokens", 24, 0), ("bad_words", ["x"], []), ("samplers", ["top_k"], []),
    ("mirostat_mode", 2, 0), ("mirostat", 1, 0), ("chat_template", "{{ 1 }}", None),
    ("use_beam_search", True, False), ("length_penalty", 2.0, 1.0), ("allowed_token_ids", [1], None),
    ("include_stop_str_in_output", True, False), ("skip_special_tokens", False, True),
    ("prompt_logprobs", 3, None), ("logits_processors", ["x"], []), ("truncate_prompt_tokens", 5, -1),
    ("typical_p", 0.5, 1), ("tfs_z", 0.5, 1), ("top_n_sigma", 1.0, -1), ("dynatemp_range", 0.5, 0),
    ("dry_multiplier", 0.8, 0), ("xtc_probability", 0.5, 0), ("top_a", 0.5, 0), ("min_keep", 3, 0),
    ("no_repeat_ngram_size", 3, 0), ("penalty_alpha", 0.5, 0), ("num_beams", 4, 1),
    ("guidance_scale", 1.5, 1), ("negative_prompt", "x", ""), ("banned_strings", ["x"], []),
    ("custom_token_bans", "1,2", ""), ("ban_eos_token", True, False), ("smoothing_factor", 0.2, 0),
    ("epsilon_cutoff", 3, 0), ("eta_cutoff", 3, 0), ("lora", [{"id": 0, "scale": 1.0}], []),
    ("stop_regex", "a+", ""), ("documents", [{"text": "x"}], []), ("watermark", True, False),
    ("t_max_predict_ms", 50, -1), ("return_token_ids", True, False), ("include_reasoning", False, True),
    ("functions", [{"name": "f"}], []), ("audio", {"voice": "x"}, {}),
]
HARMLESS = ["user", "store", "metadata", "service_tier", "prompt_cache_key", "safety_identifier",
            "dry_base", "mirostat_tau", "xtc_threshold", "priority", "request_id", "id_slot", "prediction"]
UNKNOWN = ["temprature", "frobnicate", "cache_salt", "ttl", "transforms", "provider", "num_ctx"]


def answer_text(server, more):
    body = {"temperature": 1.0, "seed": 5, **ASK, "max_tokens": 12, **more}
    status, _, json_body = post(server, "/v1/chat/completions", body)
    return json_body["choices"][0]["message"]["content"] if status == 200 else json_body


def check_fields(server):
    for name, value, same in MAPPED:
        body = {key: None for key in same if key in ("max_tokens", "seed", "temperature")}
        got, want = answer_text(server, {**body, name: value}), answer_text(server, {**body, **same})
        expect(f"{name} means {same}", isinstance(got, str) and got == want, (got, want))
    for name, value, neutral in LACKING:
        status, _, body = post(server, "/v1/chat/completions", {**ASK, name: value})
        error = body.get("error", {})
        expect(f"{name} is refused by name", status == 400 and error.get("param") == name and
               name in error.get("message", ""), body)
        status, headers, body = post(server, "/v1/chat/completions", {**ASK, name: neutral})
        expect(f"{name}: {neutral} is accepted", status == 200 and
               not headers.get("X-Lowkey-Ignored"), (headers, body))
    for name in HARMLESS:
        status, headers, body = post(server, "/v1/chat/completions", {**ASK, name: "1"})
        expect(f"{name} is accepted", status == 200 and not headers.get("X-Lowkey-Ignored"), body)
    print(f"fields of other servers: {len(MAPPED)} mapped, {len(LACKING)} refused by name, {len(HARMLESS)} without "
          f"effect, {len(UNKNOWN)} reported as unknown")
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/completions",
                 "/completion"):
        body = {**ASK, **{name: 1 for name in UNKNOWN}, "model": "m", "stream": False}
        if path == "/v1/responses":
            body = {**body, "input": "hello", "max_output_tokens": 4}
            del body["messages"], body["max_tokens"]
        if path.endswith(("completions", "completion")) and "chat" not in path:
            body["prompt"] = body.pop("messages")[0]["content"]
        status, headers, body = post(server, path, body)
        expect(f"{path} names the fields that it does not know", status == 200 and
               set(UNKNOWN) <= set((headers.get("X-Lowkey-Ignored") or "").split(", ")),
               (headers.get("X-Lowkey-Ignored"), body))
    expect("the log names them", "ignored fields: temprature, frobnicate" in server.messages())
    for name, value in (("dry_multiplier", 0.5), ("mirostat", 1)):
        status, _, body = post(server, "/api/chat", {**ASK, "options": {name: value}})
        expect(f"options.{name} is refused", status == 400 and name in str(body), body)
    for name, value in (("logprobs", True), ("template", "x")):
        status, _, body = post(server, "/api/generate", {"prompt": "x", "stream": False, name: value})
        expect(f"ollama's {name} is refused", status == 400 and name in str(body), body)
    status, headers, _ = post(server, "/api/chat", {**ASK, "stream": False, "options": {"num_ctx": 9}})
    expect("options that are not used are named", status == 200 and
           headers.get("X-Lowkey-Ignored") == "max_tokens, options.num_ctx", headers)
    status, _, body = post(server, "/v1/chat/completions",
                           {**ASK, "repeat_penalty": 1.1, "repetition_penalty": 1.2})
    expect("two values of one meaning are refused", status == 400 and "repetition_penalty" in str(body), body)
    # a token that ends the answer
    grammar = {"grammar": 'root ::= "abcd"', "temperature": 0}
    token = server.tokens("c")[0]
    expect("stop_token_ids", answer_text(server, {**grammar, "stop_token_ids": [token]}) == "ab",
           answer_text(server, {**grammar, "stop_token_ids": [token]}))


# ---- tools ----

def check_tools(server):
    """Tools and choices in the form of any API mean the same; tools that run elsewhere are left out and named."""
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
    usual = {"type": "function", "function": {"name": "light", "description": "d", "parameters": schema}}
    forms = [usual, {"function": usual["function"]}, {"type": "function", **usual["function"]}, dict(usual["function"]),
             {"name": "light", "description": "d", "input_schema": schema},
             {"type": "custom", "name": "light", "description": "d", "input_schema": schema}]
    hosted = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "local_shell"}, {"type": "custom", "name": "patch"}]
    prompt = {"messages": ASK["messages"]}
    want = post(server, "/apply-template", {**prompt, "tools": [usual]})[2]
    expect("the tool is in the prompt", "light" in str(want), want)
    for form in forms:
        got = post(server, "/apply-template", {**prompt, "tools": [form]})[2]
        expect(f"the tool {form}", got == want, got)
    choices = ["required", "any", *({"type": t} for t in ("required", "any")), {"type": "function", "function": {"name": "light"}},
               *({"type": t, "name": "light"} for t in ("function", "tool")),
               {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "light"}]}]
    paths = {"/v1/chat/completions": ASK, "/v1/messages": ASK, "/v1/responses": {"input": "hello"}}
    for path, body in paths.items():
        body = {key: value for key, value in body.items() if key != "max_tokens"}
        body |= {"max_output_tokens" if "input" in body else "max_tokens": 60, "temperature": 0}
        for choice in choices:
            status, headers, reply = post(server, path, {**body, "tools": [*hosted, forms[2]], "tool_choice": choice})
            made = [call for call in re.findall(r'"name": "(\w+)"', json.dumps(reply.get("choices") or reply.get("content") or reply.get("output")))]
            expect(f"{path}: {choice} forces a call", status == 200 and "light" in made, reply)
            expect("tools that are left out are named", headers.get("X-Lowkey-Ignored") ==
                   "tools.web_search_20250305, tools.local_shell, tools.custom", headers.get("X-Lowkey-Ignored"))
        for choice in (None, "auto", "none", {"type": "auto"}, {"type": "none"}):
            status, _, reply = post(server, path, {**body, "tools": hosted, "tool_choice": choice})
            expect(f"{path}: {choice} without other tools", status == 200, reply)
        for choice in ("light", {}, {"type": "tool"}, {"type": "web_search"}, 3):
            status, _, reply = post(server, path, {**body, "tools": [usual], "tool_choice": choice})
            expect(f"{path}: {choice} is refused", status == 400 and "'tool_choice'" in str(reply), reply)
    n_tok = post(server, "/v1/messages/count_tokens", {**ASK, "tools": forms[:1]})[2]["input_tokens"]
    for path, body in paths.items():
        if path != "/v1/messages":
            status, _, reply = post(server, path + "/input_tokens", {**body, "tools": forms[2:3]})
            expect(f"{path}: tokens are counted", status == 200 and abs(reply["input_tokens"] - n_tok) < 8, (reply, n_tok))
    for field, value in (("top_k", -1), ("function_call", "none"), ("function_call", "auto")):
        status, headers, reply = post(server, "/v1/chat/completions", {**ASK, field: value})
        expect(f"{field} {value} changes nothing", status == 200 and not headers.get("X-Lowkey-Ignored"), reply)


# ---- prompts that do not fit ----

# By what clients notice that a conversation must be compacted: the words of their own sources.
# pi's table, which opencode and others share; the others are of packages on PyPI, November 2026.
PI = [r"prompt is too long", r"input is too long for requested model", r"exceeds the context window",
      r"input token count.*exceeds the maximum", r"maximum prompt length is \d+", r"reduce the length of the messages",
      r"maximum context length is \d+ tokens", r"exceeds the limit of \d+", r"exceeds the available context size",
      r"greater than the context length", r"context window exceeds limit", r"exceeded model token limit",
      r"too large for model with \d+ maximum context length", r"prompt too long; exceeded (?:max )?context length",
      r"context[_ ]length[_ ]exceeded", r"too many tokens", r"token limit exceeded", r"model_context_window_exceeded"]
CLINE = [r"context\s*(length|window)", r"input tokens exceed", r"too many tokens", r"maximum context"]
LITELLM = [r"exceed context limit", r"this model's maximum context length is",
           r"requested token count exceeds the model's maximum context length",
           r"string too long\. expected a string with maximum length", r"model's maximum context limit",
           r"is longer than the model's context length", r"input tokens exceed the configured limit",
           r"`inputs` tokens \+ `max_new_tokens` must be", r"exceeds the available context size",
           r"exceeds the maximum number of tokens allowed", r'"code": "context_length_exceeded"', r"prompt is too long",
           r"current length is .*while limit is", r"maximum input length is .*tokens",
           r"input too long:.*input tokens, limit is"]
CODE = [r'"code": "context_length_exceeded"']
CREWAI = [r"expected a string with maximum length", r"maximum context length", r"context length exceeded",
          r"context_length_exceeded", r"context window full", r"too many tokens", r"input is too long", r"exceeds token limit"]
STRANDS = [r"maximum context length", r"context_length_exceeded", r"too many tokens", r"context length",
           r"input is too long for requested model", r"input length and `max_tokens` exceed context limit",
           r"too many total text bytes", r"exceeds the max_model_len", r"exceed(?:s|ed)?(?: customer)? model maximum"]
AGNO = [r"context_length_exceeded", r"context window", r"maximum context length", r"token limit", r"max_tokens",
        r"too many tokens", r"payload too large", r"content_too_large", r"request too large", r"input too long",
        r"prompt is too long", r"prompt too long", r"exceeds the model", r"token count exceeds",
        r"exceeds the maximum number of tokens"]
DEEPAGENTS = [r"context_length_exceeded", r"contextwindowexceedederror", r"maximum context length",
              r"exceeds the context window", r"exceeds the available context size", r"context window exceeded",
              r"context limit exceeded", r"input tokens exceed the configured limit", r"prompt is too long"]
GPTME = [r"maximum context length", r"context length exceeded", r"context window exceeded",
         r"prompt is too long for the model", r"input is too long for the model", r"too many input tokens",
         r'"code": "(context_length_exceeded|context_window_exceeded|request_too_large)"']
# By what they take it for another error, which is tried again or ends the session.
OTHERS = [r"string_above_max_length", r"rate[\s_-]*limit", r"too many requests", r"overloaded", r"\bquota\b",
          r"request_too_large", r"payload too large", r"throttl", r"credit balance", r"insufficient_quota"]
CLIENTS = {  # name: (APIs that it speaks, patterns over the whole body)
    "pi and opencode": (("chat", "responses", "messages", "ollama", "native"), PI),
    "cline": (("chat", "responses", "ollama"), CLINE),
    "litellm, aider, openhands, swe-agent and mini-swe-agent": (("chat", "text", "responses", "messages", "native"), LITELLM),
    "openai SDK": (("chat", "responses", "text"), CODE),
    "codex": (("responses",), CODE),
    "dspy": (("chat", "responses"), CODE),
    "crewai": (("chat", "text", "responses"), CREWAI),
    "strands": (("chat", "responses"), STRANDS),
    "strands, messages": (("messages",), [
        r"prompt is too long:", r"input is too long", r"input length exceeds context window",
        r"input and output tokens exceed your context limit"]),
    "strands, mistral": (("chat",), [r"too large for model", r"maximum context length"]),
    "strands, llama.cpp": (("chat", "native"), [r'"message": "[^"]*(context|kv cache|slot)']),
    "strands, ollama": (("ollama",), [
        r"the prompt is longer than the context length", r"the input length exceeds the context length",
        r"exceeds the available context", r"exceeded max context length"]),
    "agno": (("chat", "responses", "messages", "ollama"), AGNO),
    "deepagents": (("chat", "responses", "messages"), DEEPAGENTS),
    "gptme": (("chat", "text"), GPTME),
    "langchain": (("chat", "responses", "text"), [
        r"context_length_exceeded", r"input tokens exceed the configured limit", r"prompt is too long"]),
    "langchain, messages": (("messages",), [r'"message": "[^"]*prompt is too long']),
    "pydantic-ai": (("chat", "responses"), [*CODE, r"maximum context length", r"reduce the length of the messages"]),
    "pydantic-ai, messages": (("messages",), [
        r'"type": "invalid_request_error".*"message": "prompt is too long', r'"message": "prompt is too long.*"invalid_request_error"']),
    "claude code": (("messages",), [r"prompt is too long: (\d+) tokens > (\d+) maximum"]),
    "llama.cpp": (("native",), [r'"type": "exceed_context_size_error"']),
}


def check_overflow(server):
    text = "cat " * 9000
    messages = [{"role": "user", "content": text}]
    bodies = {
        "chat": ("/v1/chat/completions", {"messages": messages}),
        "text": ("/v1/completions", {"prompt": text}),
        "responses": ("/v1/responses", {"input": text}),
        "messages": ("/v1/messages", {"messages": messages, "max_tokens": 9}),
        "ollama": ("/api/chat", {"messages": messages, "stream": False}),
        "native": ("/completion", {"prompt": text}),
    }
    n_prompt = len(server.tokens(text))
    for stream in (False, True):
        replies = {}
        for name, (path, body) in bodies.items():
            status, _, reply = post(server, path, {**body, "stream": stream})
            replies[name] = json.dumps(reply)
            numbers = [int(n) for n in re.findall(r"\d{4,}", replies[name])]
            expect(f"{name}: 400 with both numbers", status == 400 and
                   any(n in (4095, 4096) for n in numbers) and
                   any(n_prompt <= n <= n_prompt + 40 for n in numbers), reply)
        n_pattern = sum(len(patterns) for _, patterns in CLIENTS.values())
        print(f"overflow: {len(CLIENTS)} clients with {n_pattern} patterns, {len(PI)} of them of pi and opencode, "
              f"recognize the errors of {sum(len(apis) for apis, _ in CLIENTS.values())} of their APIs")
        for client, (apis, patterns) in CLIENTS.items():
            for api in apis:
                expect(f"{client} recognizes the error of {api}",
                       any(re.search(p, replies[api], re.I) for p in patterns), replies[api])
        for api, reply in replies.items():
            expect(f"{api}: it is taken for nothing else", not any(re.search(p, reply, re.I) for p in OTHERS), reply)
        error = json.loads(replies["native"])["error"]
        expect("llama-server's numbers", error["n_ctx"] == 4096 and error["n_prompt_tokens"] == n_prompt,
               error)
    # the number is estimated if the text is much longer, and counted for clients that ask
    status, _, reply = post(server, "/v1/chat/completions",
                            {"messages": [{"role": "user", "content": text * 20}]})
    expect("a much longer text", status == 400 and reply["error"]["n_prompt_tokens"] > 1 << 17, reply)
    status, _, reply = post(server, "/v1/messages/count_tokens", {"messages": messages})
    expect("tokens of a long prompt are counted", status == 200 and
           n_prompt <= reply["input_tokens"] <= n_prompt + 40, reply)


def check_models(server):
    names = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx",
             "loaded_context_length")
    for path in ("/v1/models", "/models", "/api/v0/models"):
        reply = server.ask("GET", path).json()
        expect(f"{path} has the context", all(reply["data"][0][name] == 4096 for name in names), reply)
        expect(f"{path} has Codex's models", reply["models"][0]["slug"] == reply["data"][0]["id"] and
               reply["models"][0]["context_window"] == 4096, reply)
    expect("/api/show has the context",
           server.post("/api/show", {"model": "x"}).json()["model_info"]["qwen2.context_length"] == 4096)


# ---- prefixes ----

def cached(server, path, body):
    _, _, reply = post(server, path, body)
    usage = reply.get("usage", {})
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return details.get("cached_tokens", usage.get("cache_read_input_tokens"))


def check_volatile(server):
    long = "You are an agent. " * 40
    ask = [{"role": "user", "content": "hello"}]
    for i, line in enumerate(("cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;", "cch=0b1c2;")):
        line = "x-anthropic-billing-header: " + line
        block = {"type": "text", "text": line}
        rest = {"type": "text", "text": long, "cache_control": {"type": "ephemeral"}}
        bodies = {
            "blocks": ("/v1/messages", {"system": [block, rest], "messages": ask}),
            "a text": ("/v1/messages", {"system": line + "\n\n" + "2" + long, "messages": ask}),
            "a message alone": ("/v1/chat/completions", {"messages": [
                {"role": "system", "content": line}, {"role": "system", "content": "3" + long}, *ask]}),
            "a line in between": ("/v1/chat/completions", {"messages": [
                {"role": "developer", "content": "4" + long + "\n" + line + "\n" + long}, *ask]}),
            "instructions": ("/v1/responses", {"instructions": line + "\n" + "5" + long, "input": "x"}),
        }
        for name, (path, body) in bodies.items():
            if path == "/v1/messages":
                body["max_tokens"] = 1
            n = cached(server, path, {**body, "kv": "best-4"})
            if i:
                expect(f"the billing line in {name} is left out", n and n > 600, n)
    _, _, reply = post(server, "/apply-template", {"messages": [
        {"role": "system", "content": "see x-anthropic-billing-header: kept\nmore"}, *ask]})
    expect("other text stays", "kept" in str(reply), reply)


# ---- bodies ----

def check_bodies(server):
    for text in ("a\\u0000b", "a\\ud83d b", "a\\ude00b", "\\ud800\\ud83d\\ude00", "\\\\u0000"):
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
            body = '{"messages": [{"role": "user", "content": "%s"}], "max_tokens": 1, "stream": false}'
            reply = server.post(path, (body % text).encode())
            expect(f"{path} accepts {text}", reply.status == 200, reply.body)
    mark = server.post("/v1/chat/completions", b"\xef\xbb\xbf" + json.dumps(ASK).encode())
    expect("a byte order mark", mark.status == 200, mark.body)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", b"\x1f\x8b\x08" + b"x" * 50,
                       {"Content-Encoding": "gzip"})
    answer = connection.getresponse()
    text = answer.read().decode()
    expect("a compressed body is refused by name", answer.status == 415 and "Content-Encoding" in text, text)
    connection.close()


# ---- model files ----

def write_changed(path, change):
    """A tiny model whose metadata `change` has edited."""
    original = tiny_model.metadata
    tiny_model.metadata = lambda *a, **k: change(original(*a, **k))
    try:
        tiny_model.write_model(path)
    finally:
        tiny_model.metadata = original


def check_command_defaults(program, path, numbers):
    """`run` and `chat` have the file's sampling as defaults; options go first."""
    def run(*options, seed=3):
        command = [program, "run", "-m", path, "-n", "40", "-t", "1", "--seed", str(seed), "-p", "a b c", *options]
        return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout

    same = ["--temp", str(numbers["temp"]), "--top-p", str(numbers["top_p"]), "--min-p", str(numbers["min_p"]),
            "--repeat-penalty", str(numbers["penalty_repeat"]), "--top-k", "7"]
    usual = ["--temp", "0.8", "--top-p", "0.95", "--min-p", "0.05", "--repeat-penalty", "1", "--top-k", "40"]
    expect("run: the file's sampling", run() == run(*same) != run(*usual), (run(), run(*same)))
    expect("run: an option goes first", run(*usual[:6]) != run())
    for options, top_k in (([], "7"), (["--top-k", "9"], "9")):
        shown = subprocess.run([program, "chat", "-m", path, "-t", "1", "-c", "256", *options], input=b"/set\n",
                               capture_output=True, timeout=60, check=True).stdout.decode()
        values = {line.split()[0]: line.split()[1] for line in shown.splitlines() if len(line.split()) > 1}
        expect("chat: the file's sampling", [values.get(key) for key in (
            "temperature", "top-p", "min-p", "repeat-penalty", "top-k")] == ["0.25", "0.5", "0.125", "1.5", top_k], shown)


def check_files(server):
    program = server.program
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        numbers = {"temp": 0.25, "top_p": 0.5, "min_p": 0.125, "penalty_repeat": 1.5}

        def recommend(entries):
            entries |= {"general.sampling." + key: tiny_model.pack_value(tiny_model.F32, value)
                        for key, value in numbers.items()}
            entries["general.sampling.top_k"] = tiny_model.pack_value(tiny_model.U32, 7)
            del entries["tokenizer.ggml.pre"]
            return entries

        write_changed(path, recommend)
        with Server(program, ["-t", "1", "-c", "1k"], model=path) as other:
            settings = other.ask("GET", "/props").json()["default_generation_settings"]["params"]
            expect("the file's sampling is the default", [settings[key] for key in (
                "temperature", "top_p", "min_p", "repeat_penalty", "top_k")] ==
                   [0.25, 0.5, 0.125, 1.5, 7], settings)
            _, _, reply = post(other, "/completion", {"prompt": "x", "n_predict": 1, "top_k": 3})
            settings = reply["generation_settings"]
            expect("a request's fields go first", settings["top_k"] == 3 and
                   settings["temperature"] == 0.25, settings)
            expect("a missing pre-tokenizer is told", "tokenizer.ggml.pre" in other.messages(),
                   other.messages())

        check_command_defaults(program, path, numbers)

        def other_language(entries):
            entries["tokenizer.chat_template"] = tiny_model.pack_value(
                tiny_model.STRING, "{{ if .System }}<|im_start|>{{ .System }}{{ end }}{{ .Prompt }}")
            return entries

        write_changed(path, other_language)
        with Server(program, ["-t", "1", "-c", "1k"], model=path) as other:
            expect("a template of another language is told at the start",
                   "--chat-template-file" in other.messages(), other.messages())
        # a model in three files opens by any of them
        rng = random.Random(1)
        tensors = [(name, shape, 0, tiny_model.tensor_data(rng, name, shape, deviation))
                   for name, shape, deviation in tiny_model.tensors()]
        split = []
        for i, part in enumerate((tensors[:5], tensors[5:6], tensors[6:])):
            entries = tiny_model.metadata(16384) if i == 0 else {}
            entries |= {"split.no": struct.pack("<IH", 2, i), "split.count": struct.pack("<IH", 2, 3),
                        "split.tensors.count": struct.pack("<Ii", 5, len(tensors))}
            split.append(os.path.join(folder, f"s-{i + 1:05d}-of-00003.gguf"))
            with open(split[-1], "wb") as file:
                file.write(tiny_model.gguf_bytes(entries, part))
        body = {"prompt": "hello world", "max_tokens": 8, "temperature": 0}
        _, _, want = post(server, "/v1/completions", body)
        for model in split:
            with Server(program, ["-t", "1", "-c", "4k"], model=model) as other:
                _, _, reply = post(other, "/v1/completions", body)
                expect("a split model answers as the whole one",
                       reply["choices"][0]["text"] == want["choices"][0]["text"], reply)
        os.remove(split[1])
        refused = subprocess.run([program, "info", "-m", split[2]], capture_output=True, check=False)
        expect("a missing part is named", refused.returncode != 0 and
               b"s-00002-of-00003.gguf" in refused.stderr, refused.stderr)
        template = os.path.join(folder, "template")
        with open(template, "w", encoding="ascii") as file:
            file.write("{% for m in messages %}[{{ m.role }}|{{ m.content }}{{ flag }}]{% endfor %}")
        with Server(program, ["-t", "1", "-c", "1k", "--chat-template-file", template],
                    model=path) as other:
            expect("no warning with a template", "warning" not in other.messages(), other.messages())
            _, _, reply = post(other, "/apply-template", {**ASK, "chat_template_kwargs": {"flag": "!"}})
            expect("the given template is used", reply.get("prompt") == "[user|hello there!]", reply)


# ---- the same text as other tokens ----

def check_same_text(server):
    """An answer is seldom cut into the tokens that its text would be. A turn after it that is edited, or whose client
    left in the answer, goes back to the end of that answer, not to the first token that differs."""
    body = {"grammar": 'root ::= "' + "hell" * 60 + '"', "temperature": 1.5, "seed": 1, "max_tokens": 400}
    talk = [{"role": "user", "content": "say it " * 40}]
    for kv in ("f16", "best-4"):
        _, _, first = post(server, "/v1/chat/completions", {**body, "messages": talk, "kv": kv})
        answer = first["choices"][0]["message"]
        n_text = len(server.tokens(answer["content"]))
        expect("the answer has other tokens", first["usage"]["completion_tokens"] > n_text + 20, first["usage"])
        held = first["usage"]["total_tokens"]
        for turn, end in (("go on", 0), ("go on, please", 40), ("stop " * 20, 40)):
            ask = {"messages": talk + [answer, {"role": "user", "content": turn}], "kv": kv, "max_tokens": 3, "temperature": 0}
            _, _, reply = post(server, "/v1/chat/completions", ask)
            cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            expect(f"{kv}: '{turn[:20]}' is read after {held} tokens", cached >= held - end, reply["usage"])
        # the client leaves in the answer, whose prompt has the first answer's tokens, and asks again
        _, _, reply = post(server, "/v1/chat/completions", ask)
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        expect(f"{kv}: the last turn again", cached >= reply["usage"]["prompt_tokens"] - 1, reply["usage"])


CHECKS = [check_same_text, check_files, check_fields, check_tools, check_overflow, check_models, check_volatile, check_bodies]


def main():
    program, names = sys.argv[1], sys.argv[2:]
    for check in CHECKS:
        if names and check.__name__.removeprefix("check_") not in names:
            continue
        with Server(program, ["-t", "1", "-c", "4k", "--log", "--kv", "f16", "--allow-kv", "best-4"]) as server:
            check(server)
    print(f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
