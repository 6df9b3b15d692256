#!/usr/bin/env python3
"""Checks what agents and other clients need of a server, with a tiny random model.

usage: agents_check.py LOWKEY [NAME...]    only the checks NAME, if any is given
"""
import http.client
import json
import os
import re
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
    ("functions", [{"name": "f"}], []), ("audio", {"voice": "x"}, {}), ("prediction", {"a": 1}, None),
]
HARMLESS = ["user", "store", "metadata", "service_tier", "prompt_cache_key", "safety_identifier",
            "dry_base", "mirostat_tau", "xtc_threshold", "priority", "request_id", "id_slot"]
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


CHECKS = [check_fields]


def main():
    program, names = sys.argv[1], sys.argv[2:]
    for check in CHECKS:
        if names and check.__name__.removeprefix("check_") not in names:
            continue
        with Server(program, ["-t", "1", "-c", "4k", "--log"]) as server:
            check(server)
    print(f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
