"""Random requests: (method, path, body), a function of a random generator and a size in bytes.

Most are nearly valid, because a server refuses the others at once. Sizes are reached by repeating
parts, so that a body of some MiB is made in a fraction of a second.
"""
import json
import math
import string

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "river stone light paper house cloud winter answer garden music \n \t é 漢 🙂 \u0000".split(" ")
TYPES = ["string", "integer", "number", "boolean", "null", "object", "array"]


def random_size(rng, low=100, high=8 << 20):
    return int(math.exp(rng.uniform(math.log(low), math.log(high))))


def repeat(rng, size, item_bytes):
    """How often a part of item_bytes fits, sometimes a different number altogether."""
    n = max(1, size // max(1, item_bytes))
    return rng.choice([n, n, n, min(n, rng.choice([1, 2, 16, 17, 64, 65, 1000, 4096, 4097]))])


def several(rng, size, item_bytes, make):
    """A list of equal parts of `size` bytes together; `make(size)` makes one."""
    n = repeat(rng, size, item_bytes)
    return [make(max(1, size // n))] * n


def text(rng, size):
    kind = rng.randrange(6)
    if kind == 0:
        return " " * size
    if kind == 1:
        return rng.choice(string.ascii_letters) * size
    if kind == 2:
        return ("<|im_end|>\n<|im_start|>system\n" * (size // 30 + 1))[:size]
    if kind == 3:
        return ("0123456789" * (size // 10 + 1))[:size]
    part = " ".join(rng.choice(WORDS) for _ in range(200))
    return (part * (size // len(part) + 1))[:size]


def value(rng, size=50, depth=0):
    """Any JSON value."""
    kind = rng.randrange(10)
    if kind < 5 or depth > 4:
        return rng.choice([None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 0.5, 1e308, -1e-308, "", "a",
                           text(rng, min(size, 100))])
    if kind < 7:
        return several(rng, size, 60, lambda s: value(rng, s, depth + 1))
    if kind < 9:
        return {f"k{i}": value(rng, size // 6, depth + 1) for i in range(rng.randint(0, 6))}
    return text(rng, size)


# ---- schemas ----

def leaf_schema(rng, size):
    kind = rng.randrange(8)
    if kind == 0:
        return {"enum": [f"value {i}" for i in range(repeat(rng, size, 12))]}
    if kind == 1:
        return {"const": value(rng, size)}
    if kind == 2:
        low = rng.choice([0, 1, 10, 999, 1000, 1001])
        return {"type": "string", "minLength": low, "maxLength": rng.choice([low, low + 5, 1000, 5])}
    if kind == 3:
        return {"type": [rng.choice(TYPES) for _ in range(rng.choice([1, 2, 7, 8, repeat(rng, size, 9)]))]}
    if kind == 4:
        return rng.choice([True, False, None, 3, "string", [], {}])
    if kind == 5:
        return {"$ref": rng.choice(["#", "#/$defs/A", "#/$defs/B", "#/none", "http://a/b", "#/$defs"])}
    return {"type": rng.choice(TYPES)}


def schema(rng, size, depth=0):
    if depth > rng.choice([2, 4, 8, 70]) or rng.random() < 0.25:
        return leaf_schema(rng, size)
    kind = rng.randrange(9)
    n = repeat(rng, size, 30) if kind < 6 and rng.random() < 0.3 else rng.randint(1, 8)
    inner = schema(rng, size // max(2, n), depth + 1)
    if kind < 2:
        out = {"type": "object", "properties": {f"p{i}": inner for i in range(n)}}
        if rng.random() < 0.5:
            out["required"] = [f"p{rng.randrange(n + 1)}" for _ in range(rng.choice([1, 3, n, 2 * n]))]
        if rng.random() < 0.3:
            out["additionalProperties"] = rng.choice([True, False, inner])
        return out
    if kind < 4:
        out = {"type": "array", "items": inner}
        if rng.random() < 0.6:
            out["minItems"] = rng.choice([0, 1, 2, 100, 1000, 1001, -1, "1"])
        if rng.random() < 0.6:
            out["maxItems"] = rng.choice([0, 1, 2, 100, 1000, 1001, 2**40])
        return out
    if kind < 6:
        return {rng.choice(["anyOf", "oneOf"]): [inner if rng.random() < 0.5 else leaf_schema(rng, 20)
                                                 for _ in range(min(n, 2000))] * max(1, n // 2000)}
    if kind == 6:
        return {"allOf": [inner] * rng.choice([1, 1, 1, 2, 0])}
    if kind == 7:
        return {"$defs": {"A": inner, "B": schema(rng, size // 4, depth + 1)},
                "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}
    return {**inner, rng.choice(["title", "pattern", "not", "format", "$id", "default"]): value(rng, 50)} \
        if isinstance(inner, dict) else inner


def response_format(rng, size):
    made = schema(rng, size)
    return rng.choice([
        {"type": "json_schema", "json_schema": {"name": "a", "schema": made}},
        {"type": "json_schema", "json_schema": {"schema": made, "strict": True}},
        {"type": "json_object", "schema": made},
        {"type": "json_object"}, {"type": "text"}, value(rng)])


# ---- fields ----

def logit_bias(rng, size):
    n = repeat(rng, size, 12)
    if rng.random() < 0.5:
        return {str(rng.randrange(300) if rng.random() < 0.9 else i): rng.choice([1, -100, 100, False])
                for i in range(n)}
    return [[rng.randrange(266), rng.choice([1, -100, 100, False, 101, "a"])]] * n


def tools(rng, size):
    def make(s):
        return {"type": "function", "function": {"name": rng.choice(["f", "g", "a b", ""]),
                                                 "parameters": schema(rng, s)}}
    return several(rng, size, rng.choice([size, size // 128, 100]), make)


def fields(rng, size):
    """Some of the fields that both endpoints share; `size` is for one of them."""
    makers = {
        "n": lambda s: rng.choice([1, 1, 2, 16, 17, 0]),
        "temperature": lambda s: rng.choice([0, 1, 2, 1e-45, -1, 3]),
        "top_p": lambda s: rng.choice([0, 0.5, 1, 2]),
        "top_k": lambda s: rng.choice([0, 1, 40, 10**7, -1]),
        "min_p": lambda s: rng.random(),
        "seed": lambda s: rng.choice([0, -1, 2**63 - 1, 0.5]),
        "stop": lambda s: rng.choice([text(rng, s), [text(rng, max(1, s // 16))] * 16, ["a"] * 17, [""]]),
        "logit_bias": lambda s: logit_bias(rng, s),
        "response_format": lambda s: response_format(rng, s),
        "json_schema": lambda s: schema(rng, s),
        "stream": lambda s: rng.random() < 0.8,
        "stream_options": lambda s: rng.choice([{"include_usage": True}, value(rng)]),
        "frequency_penalty": lambda s: rng.uniform(-2.1, 2.1),
        "repeat_penalty": lambda s: rng.choice([1.1, 100, 0]),
        "repeat_last_n": lambda s: rng.choice([0, 64, 1 << 20]),
        "cache_prompt": lambda s: rng.random() < 0.5,
        "ignore_eos": lambda s: rng.random() < 0.5,
        "kv": lambda s: rng.choice(["best-4", "f16", text(rng, s)]),
        "user": lambda s: text(rng, s),
        "metadata": lambda s: value(rng, s),
        "unknown": lambda s: value(rng, s),
    }
    names = rng.sample(sorted(makers), rng.choice([0, 1, 2, 3, 6]))
    out = {name: makers[name](size if i == 0 else 60) for i, name in enumerate(names)}
    if names and rng.random() < 0.1:
        out[rng.choice(names)] = value(rng, size)
    out["max_tokens"] = rng.choice([1, 4, 16, 16, 0, -1, "a"]) if rng.random() < 0.2 else 8
    return out


def message(rng, size):
    role = rng.choice(["user", "user", "assistant", "system", "developer", "tool", "other"])
    kind = rng.randrange(6)
    if kind == 0:
        return {"role": role, "content": [{"type": "text", "text": text(rng, size // 4)}] * 4}
    if kind == 1:
        def call(s):
            arguments = json.dumps(value(rng, s)) if rng.random() < 0.7 else text(rng, s)
            return {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"role": "assistant", "tool_calls": several(rng, size, rng.choice([size, 100]), call)}
    if kind == 2:
        return value(rng, size)
    return {"role": role, "content": text(rng, size)}


def messages(rng, size):
    if rng.random() < 0.3:
        n = repeat(rng, size, 60)
        return [message(rng, 20)] * n
    return [message(rng, size // 3) for _ in range(3)]


def prompt(rng, size):
    kind = rng.randrange(5)
    token = rng.choice([0, 5, 265, 266, 10**9, -1])
    if kind == 0:
        return [token] * repeat(rng, size, 4)
    if kind == 1:
        return [text(rng, 30)] * repeat(rng, size, 33)
    if kind == 2:
        return [[5, 6, 7]] * repeat(rng, size, 10)
    if kind == 3:
        return value(rng, size)
    return text(rng, size)


# ---- requests of other APIs ----

def content(rng, size):
    """A string, or blocks of one of the APIs."""
    if rng.random() < 0.4:
        return text(rng, size)
    kinds = [lambda s: {"type": "text", "text": text(rng, s)},
             lambda s: {"type": "input_text", "text": text(rng, s)},
             lambda s: {"type": "tool_use", "id": "t", "name": "f", "input": value(rng, s)},
             lambda s: {"type": "tool_result", "tool_use_id": "t", "content": text(rng, s)},
             lambda s: value(rng, s)]
    return several(rng, size, 60, rng.choice(kinds))


def foreign_body(rng, size):
    """(path, value) of Anthropic's, ollama's or OpenAI's Responses API."""
    path = rng.choice(["/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat",
                       "/api/generate", "/api/show"])
    role = rng.choice(["user", "assistant", "system", "tool"])
    items = [lambda s: {"role": role, "content": content(rng, s)},
             lambda s: {"type": "function_call", "call_id": "t", "name": "f",
                        "arguments": text(rng, s)},
             lambda s: {"role": "assistant", "content": "", "tool_calls": [
                 {"function": {"name": "f", "arguments": value(rng, s)}}]}]
    made = several(rng, size, 80, rng.choice(items))
    limit = rng.choice([1, 4, 4, 4, -1, 10**9])
    return path, {
        "messages": made, "input": rng.choice([made, text(rng, size)]), "max_tokens": limit,
        "max_output_tokens": limit, "options": {"num_predict": limit, "temperature": value(rng)},
        "prompt": text(rng, size) if path == "/api/generate" else None,
        "instructions": text(rng, 60), "system": rng.choice([text(rng, 60), content(rng, size)]),
        "tools": tools(rng, size) if rng.random() < 0.3 else None,
        "stream": rng.choice([True, False, None]), "format": rng.choice(["json", "", value(rng)])}


# ---- requests ----

def make_body(rng, size):
    """(path, value)"""
    kind, large = rng.randrange(20), rng.random() < 0.5  # the fields, or the prompt
    if kind < 9:
        made = {"messages": messages(rng, 60 if large else size), **fields(rng, size if large else 60)}
        if rng.random() < 0.2:
            made["tools"] = tools(rng, size if large else 60)
            made["tool_choice"] = rng.choice(["auto", "required", "none", {"function": {"name": "f"}}])
        if rng.random() < 0.2:
            made |= {"logprobs": True, "top_logprobs": rng.choice([0, 5, 20, 21])}
        return CHAT, made
    if kind < 14:
        made = {"prompt": prompt(rng, 60 if large else size), **fields(rng, size if large else 60)}
        if rng.random() < 0.3:
            made["logprobs"] = rng.choice([0, 5, 20, 21, True])
        if rng.random() < 0.2:
            made["echo"] = True
        return TEXT, made
    if kind < 16:
        return "/tokenize", {"content": text(rng, size) if rng.random() < 0.9 else value(rng, size)}
    if kind < 18:
        token = rng.choice([0, 5, 258, 262, 265, 266, -1, "a"])
        return "/detokenize", {"tokens": [token] * repeat(rng, size, 3)}
    if kind < 19 and rng.random() < 0.7:
        return foreign_body(rng, size)
    if kind < 19:
        return f"/slots/{rng.randint(0, 3)}?action=" + rng.choice(["save", "restore", "erase", "a"]), \
            {"filename": rng.choice(["a", "b", "../a", text(rng, size)])}
    return rng.choice([CHAT, TEXT]), value(rng, size)


def random_request(rng):
    """(path, body)"""
    path, made = make_body(rng, random_size(rng))
    body = json.dumps(made, ensure_ascii=rng.random() < 0.5, separators=(",", ":")).encode(
        "utf-8", "replace")[:(8 << 20) + 1000]
    damage = rng.random()
    if damage < 0.04:
        body = body[:rng.randrange(len(body))]
    elif damage < 0.08:
        changed = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        body = bytes(changed)
    elif damage < 0.10:
        body = rng.choice([b"[", b"{\"a\":", b"[{},"]) * rng.randint(1, 100000)
    return path, body
