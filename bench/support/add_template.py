#!/usr/bin/env python3
"""Copy a GGUF file of Gemma and add a chat template, which base models do not have, for bench/reuse.

usage: bench/support/add_template.py FILE COPY

The template is Gemma's: the system message becomes the start of the first question.
"""
import struct
import sys

TEMPLATE = """{{ bos_token }}{%- set n = namespace(start='') -%}
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{%- set n.start = m['content'] + '\n\n' -%}
{%- else -%}
{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\n' + n.start + m['content'] | trim }}
{{- '<end_of_turn>\n' }}
{%- set n.start = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""
STRING, ARRAY = 8, 9
BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


def pack_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        value, = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def skip_string(self):
        n = self.number("Q")
        self.at += n

    def skip_value(self, kind):
        if kind == STRING:
            self.skip_string()
        elif kind == ARRAY:
            of, n = self.number("I"), self.number("Q")
            for _ in range(n if of in (STRING, ARRAY) else 0):
                self.skip_value(of)
            self.at += 0 if of in (STRING, ARRAY) else n * BYTES[of]
        else:
            self.at += BYTES[kind]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    reader = Reader(data)
    magic, version, n_tensor, n_key = reader.number("I"), reader.number("I"), reader.number("Q"), reader.number("Q")
    for _ in range(n_key):
        reader.skip_string()
        reader.skip_value(reader.number("I"))
    keys_end = reader.at
    for _ in range(n_tensor):
        reader.skip_string()
        n_dim = reader.number("I")
        reader.at += 8 * n_dim + 12
    entry = pack_string("tokenizer.chat_template") + struct.pack("<I", STRING) + pack_string(TEMPLATE)
    head = struct.pack("<IIQQ", magic, version, n_tensor, n_key + 1) + data[24:keys_end] + entry + data[keys_end:reader.at]
    body = reader.at + -reader.at % ALIGNMENT
    with open(sys.argv[2], "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT) + data[body:])


main()
