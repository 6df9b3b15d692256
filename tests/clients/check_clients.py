"""Runs calls of client packages, unmodified, against a server, and prints a table of what passed.

usage: check_clients.py LOWKEY [MODEL]

Without a MODEL a tiny random one is written, which is enough to see that a call passes. Packages
that are not installed are reported as skipped; see requirements.txt for those that are tried. The
exit status is 1 if a call failed, and 77 if no package is installed.
"""
import importlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
import serve_process  # noqa: E402

KEY = "secret-key"
QUESTION = "Name a river."
MAX = 12  # tokens of an answer
TOOL = {"name": "switch_light", "description": "Turns the light on or off.",
        "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}},
                       "required": ["on"], "additionalProperties": False}}


class NotOffered(Exception):
    """The server says that it does not have this endpoint."""


class Context:
    """What calls need: the server's address and its model."""

    def __init__(self, port, model):
        self.root, self.model = f"http://127.0.0.1:{port}", model
        self.v1 = self.root + "/v1"


def require(good, what):
    if not good:
        raise AssertionError(what)


def joined(parts):
    text = "".join(parts)
    require(text, "no text")
    return text


def offered(call, *errors):
    """The result of a call that this server may not have."""
    try:
        return call()
    except errors as error:
        if getattr(error, "status_code", 0) in (404, 501):
            raise NotOffered(str(error)) from error
        raise


# ---- openai ----

def openai_calls(c):
    import openai
    import pydantic

    class Light(pydantic.BaseModel):
        on: bool

    client = openai.OpenAI(base_url=c.v1, api_key=KEY, max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    tool = {"type": "function", "function": TOOL}
    response_tool = {"type": "function", **TOOL}

    def chat(**fields):
        return client.chat.completions.create(model=c.model, messages=messages,
                                              max_tokens=fields.pop("max_tokens", MAX), **fields)

    def responses(**fields):
        return client.responses.create(model=c.model, input=fields.pop("input", QUESTION),
                                       max_output_tokens=MAX * 8, **fields)

    def parse():
        answer = client.chat.completions.parse(model=c.model, messages=messages,
                                               response_format=Light)
        require(isinstance(answer.choices[0].message.parsed.on, bool), "not parsed")

    def chat_tools():
        answer = chat(tools=[tool], tool_choice="required", max_tokens=200)
        require(answer.choices[0].message.tool_calls[0].function.name == TOOL["name"], "no call")

    def responses_stream():
        names = []
        with client.responses.stream(model=c.model, input=QUESTION,
                                     max_output_tokens=MAX) as stream:
            for event in stream:
                names.append(event.type)
        require(names[0] == "response.created", names)
        require(names[-1] in ("response.completed", "response.incomplete"), names)

    def responses_parse():
        answer = client.responses.parse(model=c.model, input=QUESTION, text_format=Light)
        require(isinstance(answer.output_parsed.on, bool), "not parsed")

    def responses_tools():
        first = responses(tools=[response_tool], tool_choice="required")
        call = next(item for item in first.output if item.type == "function_call")
        require(call.name == TOOL["name"], call)
        responses(input=[{"role": "user", "content": QUESTION}, *first.output,
                         {"type": "function_call_output", "call_id": call.call_id,
                          "output": "done"}], tools=[response_tool], tool_choice="none")

    return [
        ("models.list", lambda: require(client.models.list().data[0].id == c.model, "other id")),
        ("chat", lambda: joined(chat().choices[0].message.content)),
        ("chat, stream", lambda: joined(chunk.choices[0].delta.content or ""
                                        for chunk in chat(stream=True) if chunk.choices)),
        ("chat, parse", parse),
        ("chat, tools", chat_tools),
        ("responses", lambda: joined(responses().output_text)),
        ("responses, create(stream=True)",
         lambda: joined(event.delta for event in responses(stream=True)
                        if event.type == "response.output_text.delta")),
        ("responses, stream()", responses_stream),
        ("responses, parse", responses_parse),
        ("responses, tools and results", responses_tools),
        ("completions", lambda: joined(client.completions.create(
            model=c.model, prompt="The river", max_tokens=MAX).choices[0].text)),
        ("embeddings", lambda: offered(lambda: client.embeddings.create(
            model=c.model, input="river"), openai.APIStatusError)),
    ]


# ---- anthropic ----

def anthropic_calls(c):
    import anthropic

    client = anthropic.Anthropic(base_url=c.root, api_key=KEY, max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    tool = {"name": TOOL["name"], "description": TOOL["description"],
            "input_schema": TOOL["parameters"]}

    def create(**fields):
        return client.messages.create(model="any-name", messages=messages,
                                      max_tokens=fields.pop("max_tokens", MAX), **fields)

    def stream():
        with client.messages.stream(model=c.model, messages=messages, max_tokens=MAX) as events:
            text = joined(events.text_stream)
            final = events.get_final_message()
        require(final.content[0].text == text, "the final message differs")
        require(final.usage.output_tokens > 0, "no usage")

    def tools():
        first = create(tools=[tool], tool_choice={"type": "any"}, max_tokens=200)
        call = next(block for block in first.content if block.type == "tool_use")
        require(first.stop_reason == "tool_use" and isinstance(call.input["on"], bool), first)
        client.messages.create(model=c.model, max_tokens=MAX, tools=[tool], messages=[
            *messages, {"role": "assistant", "content": first.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                          "content": "done"}]}])

    def tools_stream():
        with client.messages.stream(model=c.model, messages=messages, max_tokens=200, tools=[tool],
                                    tool_choice={"type": "tool", "name": TOOL["name"]}) as events:
            final = events.get_final_message()
        require(isinstance(final.content[-1].input["on"], bool), final)

    return [
        ("messages.create", lambda: joined(create().content[0].text)),
        ("messages.create, system blocks", lambda: joined(create(system=[
            {"type": "text", "text": "Be brief.",
             "cache_control": {"type": "ephemeral"}}]).content[0].text)),
        ("messages.create(stream=True)", lambda: require(
            [event.type for event in create(stream=True)][-1] == "message_stop", "no end")),
        ("messages.stream", stream),
        ("messages, tools and results", tools),
        ("messages.stream, tools", tools_stream),
        ("messages.count_tokens", lambda: require(client.messages.count_tokens(
            model=c.model, messages=messages, tools=[tool]).input_tokens > 0, "no tokens")),
        ("models.list", lambda: require(client.models.list().data[0].id == c.model, "other id")),
    ]


# ---- ollama ----

def ollama_calls(c):
    import ollama

    client = ollama.Client(host=c.root, headers={"Authorization": f"Bearer {KEY}"})
    messages = [{"role": "user", "content": QUESTION}]
    options = {"num_predict": MAX, "num_ctx": 2048, "seed": 1}
    tool = {"type": "function", "function": TOOL}

    def chat(**fields):
        return client.chat(model=c.model, messages=messages, options=options, **fields)

    def generate(**fields):
        return client.generate(model=c.model, prompt=QUESTION, options=options, **fields)

    def chat_format():
        answer = chat(format=TOOL["parameters"])
        require(answer.eval_count > 0 and "on" in answer.message.content, answer)

    def stream():
        parts = list(chat(stream=True))
        joined(part.message.content for part in parts)
        require(parts[-1].done and parts[-1].total_duration > 0, parts[-1])

    def history():
        client.chat(model=c.model, options=options, tools=[tool], messages=[
            *messages,
            {"role": "assistant", "content": "",
             "tool_calls": [{"function": {"name": TOOL["name"], "arguments": {"on": True}}}]},
            {"role": "tool", "tool_name": TOOL["name"], "content": "done"}])

    def pull():
        try:
            client.pull(c.model)
        except ollama.ResponseError as error:
            require(error.status_code == 501 and "-m FILE" in error.error, error)
            return
        raise AssertionError("no error")

    return [
        ("list", lambda: require(client.list().models[0].model == c.model, "other id")),
        ("show", lambda: require("completion" in client.show(c.model).capabilities, "show")),
        ("ps", lambda: require(client.ps().models[0].context_length > 0, "ps")),
        ("chat", lambda: joined(chat().message.content)),
        ("chat, stream", stream),
        ("chat, format", chat_format),
        ("chat, tools", lambda: chat(tools=[tool])),
        ("chat, calls and results", history),
        ("generate", lambda: joined(generate().response)),
        ("generate, stream", lambda: joined(part.response for part in generate(stream=True))),
        ("generate, raw", lambda: joined(generate(raw=True).response)),
        ("embed", lambda: offered(lambda: client.embed(model=c.model, input="river"),
                                  ollama.ResponseError)),
        ("pull is refused", pull),
    ]


# ---- LangChain ----

def langchain_calls(c, make, tool_choice):
    """Calls of a chat model; `make` creates it with this many tokens."""
    import pydantic

    class Light(pydantic.BaseModel):
        """Turns the light on or off."""
        on: bool

    def bind_tools():
        model = make(200)
        bound = model.bind_tools([Light], tool_choice=tool_choice) if tool_choice \
            else model.bind_tools([Light])
        answer = bound.invoke(QUESTION)
        require(answer.tool_calls or not tool_choice, answer)

    return [
        ("invoke", lambda: joined(make(MAX).invoke(QUESTION).content)),
        ("stream", lambda: require(list(make(MAX).stream(QUESTION)), "no chunks")),
        ("with_structured_output", lambda: require(isinstance(
            make(200).with_structured_output(Light).invoke(QUESTION), Light), "not parsed")),
        ("bind_tools", bind_tools),
    ]


def langchain_openai_calls(c):
    from langchain_openai import ChatOpenAI

    def make(n, **more):
        return ChatOpenAI(model=c.model, base_url=c.v1, api_key=KEY, max_tokens=n, max_retries=0,
                          **more)

    return langchain_calls(c, make, "any") + [
        ("invoke, use_responses_api", lambda: require(
            make(MAX, use_responses_api=True).invoke(QUESTION).content, "no content"))]


def langchain_anthropic_calls(c):
    from langchain_anthropic import ChatAnthropic

    def make(n):
        return ChatAnthropic(model=c.model, base_url=c.root, api_key=KEY, max_tokens=n,
                             max_retries=0)

    return langchain_calls(c, make, "any")


def langchain_ollama_calls(c):
    from langchain_ollama import ChatOllama

    def make(n):
        return ChatOllama(model=c.model, base_url=c.root, num_predict=n,
                          client_kwargs={"headers": {"Authorization": f"Bearer {KEY}"}})

    return langchain_calls(c, make, None)


# ---- LlamaIndex ----

def llama_index_calls(llm):
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage(role="user", content=QUESTION)]
    return [
        ("complete", lambda: joined(llm.complete(QUESTION).text)),
        ("chat", lambda: joined(llm.chat(messages).message.content)),
        ("stream_chat", lambda: joined(part.delta or "" for part in llm.stream_chat(messages))),
        ("stream_complete", lambda: joined(part.delta or ""
                                           for part in llm.stream_complete(QUESTION))),
    ]


def llama_index_openai_calls(c):
    from llama_index.llms.openai_like import OpenAILike

    return llama_index_calls(OpenAILike(model=c.model, api_base=c.v1, api_key=KEY,
                                        is_chat_model=True, max_tokens=MAX, max_retries=0))


def llama_index_ollama_calls(c):
    import ollama
    from llama_index.llms.ollama import Ollama

    return llama_index_calls(Ollama(
        model=c.model, base_url=c.root, context_window=2048,
        additional_kwargs={"num_predict": MAX},
        client=ollama.Client(host=c.root, headers={"Authorization": f"Bearer {KEY}"})))


# ---- frameworks on top of the packages above ----

def agents_calls(c):
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def switch_light(on: bool) -> str:
        """Turns the light on or off."""
        return "done"

    model = agents.OpenAIResponsesModel(
        model=c.model, openai_client=openai.AsyncOpenAI(base_url=c.v1, api_key=KEY, max_retries=0))
    agent = agents.Agent(name="agent", instructions="Be brief.", model=model, tools=[switch_light],
                         model_settings=agents.ModelSettings(max_tokens=100,
                                                             tool_choice="required"))

    def run():
        result = agents.Runner.run_sync(agent, "Turn on the light.")
        require(any(item.type == "tool_call_output_item" for item in result.new_items), "no call")

    return [("Runner.run_sync, tools (Responses)", run)]


def litellm_calls(c):
    import litellm

    messages = [{"role": "user", "content": QUESTION}]

    def complete(model, base, **fields):
        return litellm.completion(model=model, api_base=base, api_key=KEY, messages=messages,
                                  max_tokens=MAX, **fields)

    def check(model, base):
        joined(complete(model, base).choices[0].message.content)
        joined(chunk.choices[0].delta.content or "" for chunk in complete(model, base, stream=True))

    return [("openai/NAME", lambda: check("openai/" + c.model, c.v1)),
            ("anthropic/claude-any", lambda: check("anthropic/claude-any", c.root)),
            ("ollama_chat/NAME", lambda: check("ollama_chat/" + c.model, c.root))]


CLIENTS = [
    ("openai", "openai", openai_calls),
    ("anthropic", "anthropic", anthropic_calls),
    ("ollama", "ollama", ollama_calls),
    ("langchain-openai", "langchain_openai", langchain_openai_calls),
    ("langchain-anthropic", "langchain_anthropic", langchain_anthropic_calls),
    ("langchain-ollama", "langchain_ollama", langchain_ollama_calls),
    ("llama-index-llms-openai-like", "llama_index.llms.openai_like", llama_index_openai_calls),
    ("llama-index-llms-ollama", "llama_index.llms.ollama", llama_index_ollama_calls),
    ("openai-agents", "agents", agents_calls),
    ("litellm", "litellm", litellm_calls),
]


def is_installed(module):
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def run_call(call):
    """The word for the table, and whether the call failed."""
    try:
        call()
    except NotOffered:
        return "not offered", False
    except Exception as error:  # noqa: BLE001: whatever a client raises is a failure of the call
        return f"FAILED: {type(error).__name__}: {error}"[:300], True
    return "passed", False


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    model = sys.argv[2] if len(sys.argv) == 3 else None
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise litellm fetches a file
    installed = [entry for entry in CLIENTS if is_installed(entry[1])]
    for name, module, _ in CLIENTS:
        if not is_installed(module):
            print(f"{name:30} skipped: not installed")
    if not installed:
        print("skipped: no client package is installed, see tests/clients/requirements.txt")
        sys.exit(77)
    n_failed = 0
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    with serve_process.Server(sys.argv[1], ["-t", "1", "-c", "4k"], model=model, keys=KEY + "\n",
                              sessions=False) as server:
        name = server.ask("GET", "/v1/models").json()["data"][0]["id"]
        context = Context(server.port, name)
        for package, _, calls in installed:
            for what, call in calls(context):
                word, failed = run_call(call)
                n_failed += failed
                print(f"{package:30} {what:36} {word}", flush=True)
    print(f"{n_failed} failed")
    sys.exit(n_failed > 0)


if __name__ == "__main__":
    main()
