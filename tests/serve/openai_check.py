"""What the openai package makes of the server: usage: openai_check.py PORT (see test_openai.sh)."""
import json
import sys

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="secret-key", max_retries=0)
# A prompt that is partly reused goes through other matrix products than one that is read anew, and with
# quantised weights these round differently: what is to be equal is read anew.
ANEW = {"cache_prompt": False}
asked = [{"role": "user", "content": "Name a river."}]
failures = 0


def expect(what, good):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}")


def expect_error(kind, what, **changes):
    fields = {"model": model, "messages": asked, "max_tokens": 4, **changes}
    try:
        client.chat.completions.create(**fields)
        expect(f"{what}: no error", False)
    except openai.APIError as error:
        expect(f"{what}: {type(error).__name__}, expected {kind.__name__}", type(error) is kind)


model = client.models.list().data[0].id
expect("models.retrieve", client.models.retrieve(model).id == model)

# Chat, plain and streamed, says the same.
plain = client.chat.completions.create(model=model, messages=asked, max_tokens=16, temperature=0, extra_body=ANEW)
expect("chat text", plain.choices[0].message.content.strip())
expect("chat usage", plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens)
text, usage, role, finish = "", None, None, None
for chunk in client.chat.completions.create(model=model, messages=asked, max_tokens=16, temperature=0, stream=True,
                                            stream_options={"include_usage": True}, extra_body=ANEW):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        role = choice.delta.role or role
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
expect("streamed text", text == plain.choices[0].message.content)
expect("streamed usage", usage is not None and usage.completion_tokens == plain.usage.completion_tokens)
expect("streamed ends", role == "assistant" and finish == plain.choices[0].finish_reason)

# The stream helper, which puts chunks together by itself, and refuses answers that end at the limit.
with client.chat.completions.stream(model=model, messages=asked, max_tokens=16, temperature=0, stop=[plain.choices[0].message.content[4:7]],
                                    extra_body=ANEW) as stream:
    expect("stream helper", stream.get_final_completion().choices[0].message.content == plain.choices[0].message.content[:4])

# Logarithms.
logs = client.chat.completions.create(model=model, messages=asked, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
content = logs.choices[0].logprobs.content
expect("logprobs", len(content) == logs.usage.completion_tokens and all(len(t.top_logprobs) == 3 for t in content))
expect("logprobs join", "".join(t.token for t in content) == logs.choices[0].message.content)
expect("logprobs are greedy", all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in content))

# Stop strings.
stopped = client.chat.completions.create(model=model, messages=asked, max_tokens=16, temperature=0, stop=[plain.choices[0].message.content[4:7]],
                                         extra_body=ANEW)
expect("stop", stopped.choices[0].message.content == plain.choices[0].message.content[:4] and stopped.choices[0].finish_reason == "stop")

# Completions: several prompts, several answers, the same seed.
many = client.completions.create(model=model, prompt=["Once upon a", "The cat"], n=2, max_tokens=6, seed=7, logprobs=2, extra_body=ANEW)
again = client.completions.create(model=model, prompt=["Once upon a", "The cat"], n=2, max_tokens=6, seed=7, extra_body=ANEW)
expect("completions", [c.index for c in many.choices] == [0, 1, 2, 3])
expect("seed", [c.text for c in many.choices] == [c.text for c in again.choices])
expect("completion logprobs", "".join(many.choices[0].logprobs.tokens) == many.choices[0].text)
echo = client.completions.create(model=model, prompt="Once upon a", max_tokens=3, echo=True)
expect("echo", echo.choices[0].text.startswith("Once upon a"))
expect("streamed completion", "".join(c.choices[0].text for c in client.completions.create(model=model, prompt="A", max_tokens=4, stream=True)))

# JSON.
schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "km": {"type": "integer"}},
          "required": ["name", "km"], "additionalProperties": False}
held = client.chat.completions.create(model=model, messages=asked, max_tokens=100, temperature=0,
                                      response_format={"type": "json_schema", "json_schema": {"name": "river", "schema": schema, "strict": True}})
if held.choices[0].finish_reason == "stop":
    river = json.loads(held.choices[0].message.content)
    expect("schema", set(river) == {"name", "km"} and isinstance(river["km"], int))
else:
    expect("schema ends", False)

# A conversation goes on without being read again.
talk = asked + [{"role": "assistant", "content": plain.choices[0].message.content}, {"role": "user", "content": "And another?"}]
more = client.chat.completions.create(model=model, messages=talk, max_tokens=4)
expect("reuse", more.usage.prompt_tokens_details.cached_tokens >= plain.usage.prompt_tokens)

# Another recipe.
other = client.chat.completions.create(model=model, messages=asked, max_tokens=4, extra_body={"kv": "best-3"})
expect("recipe", other.cache["kv"] == "best-3")

# Errors have their classes.
expect_error(openai.NotFoundError, "unknown model", model="gpt-none")
expect_error(openai.BadRequestError, "temperature", temperature=1.9e9)
expect_error(openai.BadRequestError, "no messages", messages=[])
expect_error(openai.BadRequestError, "recipe", extra_body={"kv": "none"})
expect_error(openai.BadRequestError, "tools", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
expect_error(openai.BadRequestError, "too long", messages=[{"role": "user", "content": "word " * 5000}])
client.api_key = "wrong-key"
expect_error(openai.AuthenticationError, "wrong key")
client.api_key = "secret-key"
expect_error(openai.BadRequestError, "more than the queue", n=16)

print(f"openai {openai.__version__}: {failures} failures")
sys.exit(1 if failures else 0)
