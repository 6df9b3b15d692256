"""Checks the server with the openai package. usage: openai_check.py PORT (see test_openai.sh)"""
import json
import sys

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="secret-key",
                       max_retries=0)
# A prompt that is partly reused is prefilled with matrix products of other shapes, which round
# differently with quantized weights. Answers that must be equal are made without reuse.
NO_REUSE = {"cache_prompt": False}
question = [{"role": "user", "content": "Name a river."}]
failures = 0


def expect(what, good):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}")


def chat(**fields):
    return client.chat.completions.create(**{"model": model, "messages": question, **fields})


def complete(**fields):
    return client.completions.create(model=model, **fields)


def expect_error(kind, what, **fields):
    try:
        chat(max_tokens=4, **fields)
        expect(f"{what}: no error", False)
    except openai.APIError as error:
        expect(f"{what}: {type(error).__name__}, expected {kind.__name__}", type(error) is kind)


model = client.models.list().data[0].id
expect("models.retrieve", client.models.retrieve(model).id == model)
names = [kv["name"] for kv in client.models.list().data[0].meta["kv"]]
expect("each recipe once", len(names) == len(set(names)))

# A streamed chat has the same text as a plain one.
plain = chat(max_tokens=16, temperature=0, extra_body=NO_REUSE)
plain_text = plain.choices[0].message.content
expect("chat text", plain_text.strip())
expect("chat usage",
       plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens)
text, usage, role, finish = "", None, None, None
for chunk in chat(max_tokens=16, temperature=0, stream=True,
                  stream_options={"include_usage": True}, extra_body=NO_REUSE):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        role = choice.delta.role or role
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
expect("streamed text", text == plain_text)
expect("streamed usage",
       usage is not None and usage.completion_tokens == plain.usage.completion_tokens)
expect("end of the stream", role == "assistant" and finish == plain.choices[0].finish_reason)

# The stream helper joins the chunks itself, and rejects answers that end at the token limit.
with client.chat.completions.stream(model=model, messages=question, max_tokens=16, temperature=0,
                                    stop=[plain_text[4:7]], extra_body=NO_REUSE) as stream:
    expect("stream helper",
           stream.get_final_completion().choices[0].message.content == plain_text[:4])

# Logprobs.
logs = chat(max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
content = logs.choices[0].logprobs.content
expect("logprobs", len(content) == logs.usage.completion_tokens)
expect("top logprobs", all(len(t.top_logprobs) == 3 for t in content))
expect("text of logprobs", "".join(t.token for t in content) == logs.choices[0].message.content)
expect("greedy logprobs", all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in content))

# Stop strings.
stopped = chat(max_tokens=16, temperature=0, stop=[plain_text[4:7]],
               extra_body=NO_REUSE).choices[0]
expect("stop", stopped.message.content == plain_text[:4] and stopped.finish_reason == "stop")

# Completions: several prompts, several choices, the same seed.
two_prompts = {"prompt": ["Once upon a", "The cat"], "n": 2, "max_tokens": 6, "seed": 7,
               "extra_body": NO_REUSE}
many, again = complete(logprobs=2, **two_prompts), complete(**two_prompts)
expect("completions", [c.index for c in many.choices] == [0, 1, 2, 3])
expect("seed", [c.text for c in many.choices] == [c.text for c in again.choices])
expect("completion logprobs",
       "".join(many.choices[0].logprobs.tokens) == many.choices[0].text)
echo = complete(prompt="Once upon a", max_tokens=3, echo=True)
expect("echo", echo.choices[0].text.startswith("Once upon a"))
expect("streamed completion",
       "".join(c.choices[0].text for c in complete(prompt="A", max_tokens=4, stream=True)))

# JSON schema.
schema = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 20}, "km": {"type": "integer"}},
          "required": ["name", "km"], "additionalProperties": False}
constrained = chat(max_tokens=100, temperature=0, response_format={
    "type": "json_schema", "json_schema": {"name": "river", "schema": schema, "strict": True}})
if constrained.choices[0].finish_reason == "stop":
    river = json.loads(constrained.choices[0].message.content)
    expect("schema", set(river) == {"name", "km"} and isinstance(river["km"], int))
else:
    expect("end of the answer with a schema", False)

# A chat continues without another prefill.
more = chat(max_tokens=4, messages=question + [{"role": "assistant", "content": plain_text},
                                               {"role": "user", "content": "And another?"}])
expect("reuse",
       more.usage.prompt_tokens_details.cached_tokens >= plain.usage.prompt_tokens)

# Another recipe.
expect("recipe", chat(max_tokens=4, extra_body={"kv": "best-3"}).cache["kv"] == "best-3")

# Errors map to the package's exceptions.
tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
expect("any model name", chat(max_tokens=4, model="gpt-none").model == model)
expect_error(openai.BadRequestError, "temperature", temperature=1.9e9)
expect_error(openai.BadRequestError, "no messages", messages=[])
expect_error(openai.BadRequestError, "recipe", extra_body={"kv": "none"})
expect("tools with any template", chat(max_tokens=4, tools=[tool]).choices[0].message is not None)
expect_error(openai.BadRequestError, "too long",
             messages=[{"role": "user", "content": "word " * 5000}])
client.api_key = "wrong-key"
expect_error(openai.AuthenticationError, "wrong key")
client.api_key = "secret-key"
expect_error(openai.BadRequestError, "more than the queue", n=16)

print(f"openai {openai.__version__}: {failures} failures")
sys.exit(1 if failures else 0)
