"""Request bodies that cost a server far more than they cost the client. All are bytes of JSON."""
import json

MIB = 1 << 20


def dump(value):
    return json.dumps(value, separators=(",", ":")).encode()


def chat(text, **fields):
    return dump({"messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields})


def with_schema(schema, **fields):
    return chat("Answer in JSON.", response_format={
        "type": "json_schema", "json_schema": {"name": "a", "schema": schema}}, **fields)


# ---- schemas ----

def type_list(n):
    """n types and n unknown keys: costs n * n if the schema is copied for each type."""
    return with_schema({"type": ["string"] * n, **{f"k{i}": 0 for i in range(n)}})


def properties(n, required=()):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)},
            "required": list(required)}


def many_properties(n):
    return with_schema(properties(n))


def required_list(n_name, n_property):
    """Costs n_name * n_property if the list is searched for each property."""
    return with_schema(properties(n_property, ["p0"] * n_name))


def repetitions(n_array, n_item=1000):
    """Small text, large grammar: each array repeats its item up to n_item times."""
    item = {"type": "array", "items": {"type": "integer"}, "maxItems": n_item}
    return with_schema({"type": "object", "properties": {f"p{i}": item for i in range(n_array)}})


def recursive_alternatives(n, bracket, max_tokens=64, **fields):
    """An array of one of n equal kinds of arrays of the same: each "[" multiplies the states of a
    grammar by n. `bracket`: the token "[[", which the bias forces."""
    arrays = [{"type": "array", "items": {"$ref": "#/$defs/A"}} for _ in range(n)]
    schema = {"$defs": {"A": {"anyOf": [{"$ref": f"#/$defs/B{i}"} for i in range(n)]},
                        **{f"B{i}": array for i, array in enumerate(arrays)}},
              "$ref": "#/$defs/A"}
    return with_schema(schema, logit_bias={str(bracket): 100}, temperature=0,
                       max_tokens=max_tokens, **fields)


def prompts_times_grammars(n_prompt, n, n_array):
    """n_prompt * n answers, each with a large grammar of its own."""
    item = {"type": "array", "items": {"type": "integer"}, "maxItems": 1000}
    schema = {"type": "object", "properties": {f"p{i}": item for i in range(n_array)}}
    return dump({"prompt": ["a"] * n_prompt, "n": n, "max_tokens": 2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": schema}}})


def system_messages(n):
    return dump({"input": [{"role": "developer", "content": "x" * 60}] * n, "max_output_tokens": 16})


# ---- tokens and texts ----

def token_list(n_bytes):
    return b'{"tokens":[' + b",".join([b"5"] * (n_bytes // 2)) + b"]}"


def text_of_spaces(n_bytes):
    return dump({"content": " " * n_bytes})


def text_of_control_tokens(n_bytes):
    """Costs n_bytes squared if the text is searched again after each token."""
    part = "<|im_end|>\n<|im_start|>user\n"
    return dump({"content": part * (n_bytes // len(part)), "add_special": True})


def one_word(n_bytes):
    return dump({"content": "a" * n_bytes})


def ordinary_text(n_bytes):
    sentence = "The river carries light past the old stone house, and nobody hurries. "
    return dump({"content": (sentence * (n_bytes // len(sentence) + 1))[:n_bytes]})


# ---- JSON ----

def small_values(n_bytes):
    """Many small values in a field that no handler reads."""
    values = b",".join([b"{}"] * (n_bytes // 3))
    return b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"metadata":[' + values + b"]}"


def deep_json(depth):
    return b'{"prompt":' + b"[" * depth + b"]" * depth + b"}"


# ---- fields ----

def logprobs_times_n(n=16, max_tokens=256):
    return chat("hello", n=n, max_tokens=max_tokens, logprobs=True, top_logprobs=20,
                ignore_eos=True)


def large_logit_bias(n=4096, n_vocab=260):
    """Pairs may name a token again."""
    return dump({"prompt": "hello", "max_tokens": 64, "ignore_eos": True,
                 "logit_bias": [[i % n_vocab, (i % 200) - 100] for i in range(n)]})


def stop_strings(n_bytes, n=16):
    """Long stop strings whose beginnings match everything that a greedy answer repeats."""
    letters = ["\n", " ", "a", "h", "0", "\t", "\u0000", "e"]
    stop = [letters[i % len(letters)] * (n_bytes // n) + str(i) for i in range(n)]
    return chat("hello", stop=stop, max_tokens=512, ignore_eos=True, temperature=0)


def endless_stream(max_tokens):
    return chat("hello", stream=True, max_tokens=max_tokens, ignore_eos=True, logprobs=True,
                top_logprobs=5)
