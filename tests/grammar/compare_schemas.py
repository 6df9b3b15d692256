"""Compares grammars of random JSON schemas with the validator jsonschema.

usage: compare_schemas.py WALK_GRAMMAR [COUNT [FIRST]]    WALK_GRAMMAR: the program in build/tests

Each seed makes a schema. Every text that its grammar makes must be JSON that the validator accepts. So must every mutated
text that the grammar accepts. Of mutated values that the validator accepts, written as the grammar writes them, the grammar
may refuse few, which it never writes: bounded numbers with exponents, properties that are not listed, Infinity.
"""
import collections
import json
import random
import subprocess
import sys

import jsonschema

MAX_REFUSED = 0.03  # of the mutated values that the validator accepts
KEYS = ("a", "b", "key", "x y", "\u00e9")
PATTERNS = ("^[a-c]{1,3}$", "^(x|yz)+$", "b", "^a", "0$", "^[^\"\\\\]{2}$", "^\\d{2}-\\w$", "^ ?[^ ]*$")


class Writer:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.n_def = self.rng.randint(0, 2)
        self.inside = 1  # of an object or an array: only there may a $ref lead back

    def schema(self):
        out = self.any(3)
        self.inside = 0
        if self.n_def:
            out = {**out, "$defs": {f"d{i}": self.any(1) for i in range(self.n_def)}}
        return out

    def any(self, depth):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "true"]
        if depth > 0:
            kinds += 2 * ["object", "array", "anyOf"] + ["oneOf", "allOf", "types", "tuple"]
        if self.n_def and self.inside:
            kinds += ["ref"]
        kind = self.rng.choice(kinds)
        deeper = kind in ("object", "array", "tuple")
        self.inside += deeper
        out = getattr(self, "make_" + kind)(depth - 1)
        self.inside -= deeper
        return out

    def some(self, chance, **fields):
        return {name: value() for name, value in fields.items() if self.rng.random() < chance}

    def make_string(self, _):
        if self.rng.random() < 0.3:
            return {"type": "string", "pattern": self.rng.choice(PATTERNS)}
        low = self.rng.randint(0, 3)
        return {"type": "string"} | self.some(0.4, minLength=lambda: low, maxLength=lambda: low + self.rng.randint(0, 3))

    def make_integer(self, _):
        low = self.rng.randint(-120, 120)
        return {"type": "integer"} | self.some(0.4, minimum=lambda: low, maximum=lambda: low + self.rng.randint(0, 1500)) | \
            self.some(0.1, multipleOf=lambda: 1)

    def make_number(self, _):
        low = self.rng.randint(-20, 20)
        return {"type": "number"} | self.some(0.3, minimum=lambda: low, exclusiveMaximum=lambda: low + self.rng.randint(1, 40))

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_null(self, _):
        return {"type": "null"}

    def make_true(self, _):
        return {"description": "anything"}

    def value(self, depth=2):
        kinds = [lambda: self.rng.randint(-9, 99), lambda: self.rng.choice(["", "a", "yz", "0", "x\"\\\n", "\u6f22"]), lambda: None,
                 lambda: self.rng.random() < 0.5, lambda: self.rng.choice([0.5, -1.25, 1e20])]
        if depth > 0:
            kinds += [lambda: [self.value(depth - 1) for _ in range(self.rng.randint(0, 2))],
                      lambda: {key: self.value(depth - 1) for key in self.rng.sample(KEYS, self.rng.randint(0, 2))}]
        return self.rng.choice(kinds)()

    def make_enum(self, _):
        return {"enum": [self.value() for _ in range(self.rng.randint(1, 3))]}

    def make_const(self, _):
        return {"const": self.value()}

    def make_object(self, depth):
        keys = self.rng.sample(KEYS, self.rng.randint(0, 3))
        return {"type": "object", "properties": {key: self.any(depth) for key in keys},
                "required": [key for key in keys if self.rng.random() < 0.5]} | \
            self.some(0.6, additionalProperties=lambda: self.rng.choice([False, False, {"type": "integer"}]))

    def make_array(self, depth):
        low = self.rng.randint(0, 2)
        return {"type": "array", "items": self.any(depth)} | \
            self.some(0.5, minItems=lambda: low, maxItems=lambda: low + self.rng.randint(0, 2))

    def make_tuple(self, depth):
        parts = [self.any(depth) for _ in range(self.rng.randint(1, 2))]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}

    def make_types(self, _):
        return {"type": self.rng.sample(["string", "integer", "null", "boolean", "array"], 2)}

    def make_anyOf(self, depth):
        return {"anyOf": [self.any(depth) for _ in range(self.rng.randint(1, 3))]}

    def make_oneOf(self, depth):
        return {"oneOf": [self.any(depth) for _ in range(self.rng.randint(1, 2))]}

    def make_allOf(self, depth):
        first = self.make_object(depth)
        if first.get("additionalProperties") is False:  # merged as if the other's properties were its own
            del first["additionalProperties"]
        return {"allOf": [first, {"properties": {"a": self.any(0)}}]}

    def make_ref(self, _):
        return {"$ref": f"#/$defs/d{self.rng.randrange(self.n_def)}"}

    # ---- mutations ----

    def mutate_text(self, text):
        at = self.rng.randint(0, len(text))
        return text[:at] + self.rng.choice(["", "0", "\"", ",", "a", "]", "}", "-", "null", "{\"a\":"]) + text[at + self.rng.randint(0, 2):]

    def mutate_value(self, value):
        if isinstance(value, dict) and value and self.rng.random() < 0.8:
            key = self.rng.choice(list(value))
            if self.rng.random() < 0.3:
                return {k: v for k, v in value.items() if k != key}
            return {k: self.mutate_value(v) if k == key else v for k, v in value.items()}
        if isinstance(value, list) and value and self.rng.random() < 0.8:
            at = self.rng.randrange(len(value))
            return value[:at] + self.rng.choice([[], [self.mutate_value(value[at])], [value[at]] * 2]) + value[at + 1:]
        if isinstance(value, str) and self.rng.random() < 0.6:
            at = self.rng.randint(0, len(value))
            return value[:at] + self.rng.choice(["", "a", "b", "0", "x", "\u00e9", "\\"]) + value[at + self.rng.randint(0, 1):]
        if isinstance(value, int) and not isinstance(value, bool) and self.rng.random() < 0.6:
            return value + self.rng.choice([-1, 1, 10, -1000])
        return self.value(1)


def any_of(schema):
    """oneOf is treated as anyOf."""
    if isinstance(schema, list):
        return [any_of(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: any_of(value) for key, value in schema.items()}


class Twice(ValueError):
    """A key that an object has twice: a grammar cannot exclude it."""


def pairs(items):
    if len({key for key, _ in items}) < len(items):
        raise Twice
    return dict(items)


def judge(validator, text):
    """None: valid, "twice", or what is wrong."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except Twice:
        return "twice"
    except ValueError as error:
        return f"not JSON: {error}"
    error = next(validator.iter_errors(value), None)
    return error and error.message


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    n, refused = collections.Counter(), collections.Counter()

    def fail(kind, seed, schema, text, why):
        n["FAILED"] += 1
        if n["FAILED"] <= 20:
            print(f"FAILED: seed {seed}: {kind} {text!r}: {why}\n  {json.dumps(schema)}")

    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        def ask(schema, seed, texts):
            program.stdin.write(json.dumps({"schema": schema, "seed": seed, "texts": texts}).encode() + b"\n")
            program.stdin.flush()
            return json.loads(program.stdout.readline())

        for seed in range(first, first + count):
            writer = Writer(seed)
            schema = writer.schema()
            validator = jsonschema.Draft202012Validator(any_of(schema))
            got = ask(schema, seed, [])
            if "error" in got:
                n["schemas refused"] += 1
                refused[got["error"][:100]] += 1
                continue
            n["schemas"] += 1
            made = []
            for text in got["made"]:
                why = judge(validator, text) if isinstance(text, str) else text and next(iter(text))
                if text is None:
                    n["texts too long"] += 1
                elif why == "twice":
                    n["texts with a key twice"] += 1
                elif why:
                    fail("made", seed, schema, text, why)
                else:
                    n["texts made"] += 1
                    made.append(text)
            values = [json.dumps(writer.mutate_value(json.loads(text)), ensure_ascii=False, separators=(",", ":"))
                      for text in made for _ in range(4)]
            values = [text for text in values if text.isprintable()]  # without halves of UTF-16 pairs
            texts = values + [writer.mutate_text(text) for text in made for _ in range(4)]
            for i, (text, accepted) in enumerate(zip(texts, ask(schema, seed, texts)["accepted"], strict=True)):
                why = judge(validator, text)
                n["mutated"] += 1
                if accepted and why and why != "twice":
                    fail("accepted", seed, schema, text, why)
                n["mutated, accepted by both"] += accepted and not why
                if i < len(values) and not why:
                    n["mutated values that are valid"] += 1
                    n["of these refused"] += not accepted
                    if not accepted and "-v" in sys.argv:
                        print(f"refused: seed {seed}: {text}\n  {json.dumps(schema)}")
        program.stdin.close()
    for reason, times in refused.most_common(8):
        print(f"{times:6} schemas refused: {reason}")
    print(", ".join(f"{times} {what}" for what, times in n.items()))
    sys.exit(1 if n["FAILED"] or n["of these refused"] > MAX_REFUSED * n["mutated values that are valid"] else 0)


main()
