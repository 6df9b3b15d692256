#!/usr/bin/env python3
"""Use `lowkey serve` with OpenAI's Python package (pip install openai).

usage: openai_client.py [BASE_URL]        default: http://127.0.0.1:8080/v1
"""
import json
import sys

import openai

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
client = openai.OpenAI(base_url=base_url, api_key="none")
model = client.models.list().data[0]
print(f"{model.id}; recipes: {', '.join(kv['name'] for kv in model.meta['kv'])}\n")

# Stream an answer.
question = [{"role": "user", "content": "Name three rivers."}]
stream = client.chat.completions.create(model=model.id, messages=question, max_tokens=60,
                                        stream=True)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print("\n")

# Constrain an answer to a JSON schema.
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "length_km": {"type": "integer"}},
    "required": ["name", "length_km"],
    "additionalProperties": False,
}
reply = client.chat.completions.create(
    model=model.id, messages=question, max_tokens=100, temperature=0,
    response_format={"type": "json_schema", "json_schema": {"name": "river", "schema": schema}})
print(json.loads(reply.choices[0].message.content))

# Bits per value of the cache, and prompt tokens that were reused.
n_reused = reply.usage.prompt_tokens_details.cached_tokens
print(f"{reply.cache['bits_per_value']:.2f} bits per value, {n_reused} tokens reused")

# Errors raise the package's exceptions.
try:
    client.chat.completions.create(model=model.id, messages=question, temperature=9)
except openai.BadRequestError as error:
    print(f"rejected: {error.body['message']}")
