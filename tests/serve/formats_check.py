"""Checks thoughts and tool calls in the formats of model families, through every API.

usage: formats_check.py LOWKEY [NAME...]    only the formats NAME, if any is given

Each format has a small chat template with the words of its family. A tiny random model gets that
template, and a grammar makes it answer as the family would. The same thoughts, text and calls must
arrive from all APIs, whole and streamed, and the template must write them again into the next prompt.
"""
import json
import os
import sys
import tempfile

import tiny_model
from serve_process import Server

TOOLS = [{"type": "function", "function": {
    "name": "light", "description": "d", "parameters": {"type": "object", "properties": {
        "room": {"type": "string"}, "level": {"type": "integer"}, "at": {"type": "array"}}}}}]
SWITCH = {"type": "function", "function": {"name": "switch", "parameters": {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
    "additionalProperties": False}}}
ARGUMENTS = {"room": 'a "b" </x>\n[c]', "level": 3, "at": [1, {"k": None}]}
ASK = [{"role": "user", "content": "q"}]
RESULT = {"role": "tool", "tool_call_id": "", "content": "done"}
failures = 0


def expect(what, good, seen=None):
    global failures
    if not good:
        failures += 1
        print(f"FAILED: {what}" + (f": {str(seen)[:900]}" if seen is not None else ""))


# ---- templates ----

def template(call, think="", user="<|im_start|>user\n", answer="<|im_start|>assistant\n",
             end="<|im_end|>\n", prompt=None, calls=("", "", ""), tool=None, text="{{ m.content }}"):
    """Conversations with the parts of a message of the assistant: thoughts, text, and calls, with
    words before, between and after. `f` is the function of a call."""
    first, between, last = calls
    prompt, tool = answer if prompt is None else prompt, tool or user + "{{ m.content }}" + end
    return ("{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
            "{% if m.role == 'assistant' %}" + answer +
            ("{% if m.reasoning_content %}" + think + "{% endif %}" if think else "") + text +
            "{% if m.tool_calls %}" + first + "{% for c in m.tool_calls %}{% set f = c.function %}" +
            call + "{% if not loop.last %}" + between + "{% endif %}{% endfor %}" + last +
            "{% endif %}" + end + "{% elif m.role == 'tool' %}" + tool + "{% else %}" + user +
            "{{ m.content }}" + end + "{% endif %}{% endfor %}{% if add_generation_prompt %}" +
            prompt + "{% endif %}")


JSON_CALL = "{{ {'name': f.name, 'arguments': f.arguments} | tojson }}"
THINK = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"
# {{ }} of strings that have quotes and braces of their own
QWEN = ("{{ '<tool_call>\n<function=' + f.name + '>\n' }}{% for k, v in f.arguments.items() %}"
        "{{ '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}"
        "{% endfor %}{{ '</function>\n</tool_call>' }}")
QUOTE = '<|"|>'
GEMMA = ("{% macro value(v) %}{% if v is string %}" + QUOTE + "{{ v }}" + QUOTE +
         "{% elif v is mapping %}{{ '{' }}{% for k, w in v.items() %}{{ k }}:{{ value(w) }}"
         "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is iterable %}"
         "[{% for w in v %}{{ value(w) }}{% if not loop.last %},{% endif %}{% endfor %}]"
         "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}")
PYTHON = ("{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
          "{% if not loop.last %}, {% endif %}{% endfor %})")
GPT_OSS = ("{% if tools %}{{ tools | tojson }}{% endif %}{% set last = namespace(name='') %}"
           "{% for m in messages %}{% if m.role == 'assistant' %}"
           "{% if m.content and m.thinking and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
           "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{% set last.name = f.name %}"
           "{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + "
           "'<|end|>' }}{% elif m.content %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + "
           "m.content + '<|end|>' }}{% endif %}"
           "{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' +"
           " f.arguments | tojson + '<|call|>' }}"
           "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
           "{% endif %}{% elif m.role == 'tool' %}{{ '<|start|>functions.' + last.name + "
           "' to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}"
           "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
           "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}")
V3 = ("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>")
R1 = ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
      "{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜>")
DEEPSEEK = dict(user="<｜User｜>", answer="<｜Assistant｜>", end="<｜end▁of▁sentence｜>",
                calls=("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"))
TEXT = json.dumps(ARGUMENTS)
CALL = f'{{"name": "light", "arguments": {TEXT}}}'
QWEN_CALL = ('<tool_call>\n<function=light>\n<parameter=room>\na "b" </x>\n[c]\n</parameter>\n'
             '<parameter=level>\n3\n</parameter>\n<parameter=at>\n[1, {"k": null}]\n</parameter>\n'
             '</function>\n</tool_call>')
PYTHON_CALL = f'light(room={json.dumps(ARGUMENTS["room"])}, level=3, at=[1, {{"k": null}}])'
GEMMA_CALL = (f'<|tool_call>call:light{{room:{QUOTE}{ARGUMENTS["room"]}{QUOTE},level:3,'
              'at:[1,{k:null}]}<tool_call|>')
MISTRAL = dict(user="[INST]", answer="", end="</s>", prompt="")

# name: template, answer, does the prompt start the thoughts, how the template writes the call
FORMATS = {
    "qwen3": (template("<tool_call>\n" + JSON_CALL + "\n</tool_call>", THINK),
              f"<think>\nhm\n</think>\n\nI look.<tool_call>\n{CALL}\n</tool_call>",
              f"I look.<tool_call>\n{CALL}\n</tool_call>"),
    "qwen3.5": (template(QWEN, THINK, prompt="<|im_start|>assistant\n<think>\n"),
                f"<think>\nhm\n</think>\n\nI look.{QWEN_CALL}", f"I look.{QWEN_CALL}"),
    "mistral array": (template(JSON_CALL, "[THINK]{{ m.reasoning_content }}[/THINK]",
                               calls=("[TOOL_CALLS][", ", ", "]"), **MISTRAL),
                      f"[THINK]hm[/THINK]I look.[TOOL_CALLS][{CALL}]", f"[TOOL_CALLS][{CALL}]"),
    "mistral": (template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
                         "[THINK]{{ m.reasoning_content }}[/THINK]", **MISTRAL),
                f"[THINK]hm[/THINK]I look.[TOOL_CALLS]light[ARGS]{TEXT}",
                f"[TOOL_CALLS]light[ARGS]{TEXT}"),
    "granite 3": (template(JSON_CALL, "<think>{{ m.reasoning_content }}</think>",
                           calls=("<|tool_call|>[", ", ", "]"),
                           text="<response>{{ m.content }}</response>"),
                  f"<think>hm</think><response>I look.</response><|tool_call|>[{CALL}]",
                  f"<|tool_call|>[{CALL}]"),
    "phi 4 mini": (template(JSON_CALL, THINK, calls=("functools[", ", ", "]"), text=""),
                   f"<think>\nhm\n</think>\n\nfunctools[{CALL}]", f"functools[{CALL}]"),
    "gemma 4": (GEMMA + template("<|tool_call>call:{{ f.name }}{{ value(f.arguments) }}<tool_call|>",
                                 "<|channel>thought\n{{ m.reasoning_content }}\n<channel|>",
                                 user="<|turn>user\n", answer="<|turn>model\n", end="<turn|>\n"),
                f"<|channel>thought\nhm\n<channel|>I look.{GEMMA_CALL}", GEMMA_CALL),
    "lfm2": (template(PYTHON, THINK, calls=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")),
             f"<think>\nhm\n</think>\n\nI look.<|tool_call_start|>[{PYTHON_CALL}]<|tool_call_end|>",
             f"<|tool_call_start|>[{PYTHON_CALL}]<|tool_call_end|>"),
    "olmo 3": (template(PYTHON, THINK, prompt="<|im_start|>assistant\n<think>",
                        calls=("<function_calls>", "\n", "</function_calls>")),
               f"<think>hm\n</think>\n\nI look.<function_calls>{PYTHON_CALL}</function_calls>",
               f"<function_calls>{PYTHON_CALL}</function_calls>"),
    "deepseek v3.1": (template(V3, "<think>{{ m.reasoning_content }}</think>", **DEEPSEEK),
                      "<think>hm</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>light"
                      f"<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                      f"light<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"),
    "deepseek r1": (template(R1, "<think>{{ m.reasoning_content }}</think>", **DEEPSEEK),
                    "<think>hm</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
                    f"<｜tool▁sep｜>light\n```json\n{TEXT}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                    f"light\n```json\n{TEXT}\n```<｜tool▁call▁end｜>"),
    "gpt-oss": (GPT_OSS,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
                "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
                f"to=functions.light <|constrain|>json<|message|>{TEXT}",
                "<|start|>assistant<|channel|>analysis<|message|>hm\n\nI look.<|end|><|start|>"
                f"assistant to=functions.light<|channel|>commentary json<|message|>{TEXT}<|call|>"),
}


# ---- APIs ----

def grammar(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'root ::= "{escaped}"'


def data_of(text):
    return [json.loads(line[6:]) for line in text.split("\n")
            if line.startswith("data: ") and line != "data: [DONE]"]


def post(server, path, body):
    reply = server.post(path, body, timeout=60)
    text = reply.body.decode()
    expect(f"{path}: status", reply.status == 200, text)
    return text


def openai(server, text, streamed, tools=None):
    body = {"messages": ASK, "tools": tools or TOOLS, "grammar": grammar(text), "stream": streamed}
    out = post(server, "/v1/chat/completions", body)
    if not streamed:
        message = json.loads(out)["choices"][0]["message"]
        return (message.get("reasoning_content", ""), message["content"] or "",
                [c["function"] for c in message.get("tool_calls", [])])
    thoughts = content = ""
    calls = []
    for chunk in data_of(out):
        for choice in chunk["choices"]:
            thoughts += choice["delta"].get("reasoning_content", "")
            content += choice["delta"].get("content") or ""
            calls += [c["function"] for c in choice["delta"].get("tool_calls", [])]
    return thoughts, content, calls


def anthropic(server, text, streamed):
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
             for t in TOOLS]
    out = post(server, "/v1/messages", {"messages": ASK, "tools": tools, "grammar": grammar(text),
                                        "stream": streamed, "max_tokens": 1000})
    blocks = []
    if not streamed:
        blocks = json.loads(out)["content"]
    for event in data_of(out) if streamed else []:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        delta = event.get("delta", {})
        kind = delta.get("type")
        if kind == "text_delta":
            blocks[-1]["text"] += delta["text"]
        elif kind == "thinking_delta":
            blocks[-1]["thinking"] += delta["thinking"]
        elif kind == "input_json_delta":
            blocks[-1]["json"] += delta["partial_json"]
    return ("".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            "".join(b["text"] for b in blocks if b["type"] == "text"),
            [{"name": b["name"], "arguments": b["json"] if streamed else json.dumps(b["input"])}
             for b in blocks if b["type"] == "tool_use"])


def responses(server, text, streamed):
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    out = post(server, "/v1/responses", {"input": "q", "tools": tools, "grammar": grammar(text),
                                         "stream": streamed})
    if streamed:
        events = data_of(out)
        items = events[-1]["response"]["output"]
        for kind in ("reasoning", "message"):
            name = "reasoning_text" if kind == "reasoning" else "output_text"
            pieces = "".join(e["delta"] for e in events if e["type"] == f"response.{name}.delta")
            whole = "".join(i["content"][0]["text"] for i in items if i["type"] == kind)
            expect(f"responses: deltas of {kind}", pieces == whole, (pieces, whole))
    else:
        items = json.loads(out)["output"]
    return ("".join(i["content"][0]["text"] for i in items if i["type"] == "reasoning"),
            "".join(i["content"][0]["text"] for i in items if i["type"] == "message"),
            [{"name": i["name"], "arguments": i["arguments"]} for i in items
             if i["type"] == "function_call"])


def check_format(server, name, text, written):
    want_text = "" if name == "phi 4 mini" else "I look."
    for api in openai, anthropic, responses:
        for streamed in False, True:
            what = f"{name}, {api.__name__}{', streamed' if streamed else ''}"
            thoughts, content, calls = api(server, text, streamed)
            expect(f"{what}: thoughts", thoughts == "hm", thoughts)
            expect(f"{what}: text", content == want_text, content)
            expect(f"{what}: call", [c["name"] for c in calls] == ["light"] and
                   json.loads(calls[0]["arguments"]) == ARGUMENTS, calls)
    cut = text[:text.index("level") + 2]  # within the arguments: no call, and nothing is lost
    for streamed in False, True:
        thoughts, content, calls = openai(server, cut, streamed)
        expect(f"{name}: a call that is cut", thoughts == "hm" and not calls and
               content.startswith(want_text) and content.endswith(cut[-20:]), content)
    second = '<tool_call>{"name": "light", "argu'
    for streamed in (False, True) if text[-1] != "]" else ():  # else the call has no closing tag
        content, calls = openai(server, text + second, streamed)[1:]
        expect(f"{name}: a call that is cut after another", len(calls) == 1 and
               content == want_text + ("\n\n" if want_text else "") + second, content)
    raw = json.loads(post(server, "/v1/chat/completions", {
        "messages": ASK, "grammar": grammar(text), "reasoning_format": "none"}))
    expect(f"{name}: everything as it is", raw["choices"][0]["message"]["content"] == text, raw)
    answer = json.loads(post(server, "/v1/chat/completions", {
        "messages": ASK, "tools": TOOLS, "grammar": grammar(text)}))["choices"][0]["message"]
    history = ASK + [answer, {**RESULT, "tool_call_id": answer["tool_calls"][0]["id"]}]
    prompt = json.loads(post(server, "/apply-template", {"messages": history, "tools": TOOLS}))
    expect(f"{name}: the next prompt", written in prompt["prompt"] and "hm" in prompt["prompt"],
           prompt)


# ---- calls that are free to begin, and valid once begun ----

MANY = [{"type": "function", "function": {"name": "light", "parameters": {
    "type": "object", "required": ["on", "mood"], "properties": {
        "level": {"type": "integer", "minimum": 1, "maximum": 20}, "on": {"type": "boolean"},
        "mood": {"type": "string", "enum": ["warm", "cold"]}}}}},
        {"type": "function", "function": {"name": "none", "parameters": {
            "type": "object", "properties": {}, "additionalProperties": False}}}]
LLAMA = "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}{{ '}' }}"
# format: the word that begins a call
BEGINS = {"qwen3": "<tool_call>", "qwen3.5": "<function=", "mistral": "[TOOL_CALLS]", "granite 3": "<|tool_call|>",
          "gemma 4": "<|tool_call>", "lfm2": "<|tool_call_start|>", "olmo 3": "<function_calls>",
          "deepseek v3.1": "<｜tool▁calls▁begin｜>", "deepseek r1": "<｜tool▁calls▁begin｜>",
          "gpt-oss": "<|channel|>commentary to=functions.", "llama 3": '{"name": "'}


# In these forms the grammar leaves no white space outside of the arguments to the model.
READ_ON = ("mistral", "deepseek v3.1", "deepseek r1", "llama 3")


def check_lazy(program, folder, name):
    """A random model that is made to begin calls, and is free to choose everything after it."""
    path, word = os.path.join(folder, "lazy.gguf"), BEGINS[name]
    given = template(LLAMA) if name == "llama 3" else FORMATS[name][0]
    given = given.replace("<think>{% endif %}", "{% endif %}").replace("<think>\n{% endif %}", "{% endif %}")
    tiny_model.write_model(path, n_ctx=4096, template=given, words=(word,))
    with Server(program, ["-t", "1", "-c", "4096"], model=path, sessions=False) as server:
        begin = server.tokens(word)
        expect(f"{name}: a token begins calls", len(begin) == 1, begin)
        n_good = 0
        for seed in range(6):
            reply = json.loads(post(server, "/v1/chat/completions", {
                "messages": ASK, "tools": MANY, "temperature": 2.0, "seed": seed, "max_tokens": 2000,
                "logit_bias": {str(begin[0]): 90}}))
            message = reply["choices"][0]["message"]
            calls = message.get("tool_calls", [])
            if not calls:  # it begins calls for ever: take the first one alone
                first = word + message["content"].split(word)[1]
                calls = [{"function": one} for one in openai(server, first, False, MANY)[2]]
                expect(f"{name}: seed {seed}: what begins becomes a call", calls, message)
            for call in calls:
                given, function = json.loads(call["function"]["arguments"]), call["function"]["name"]
                n_good += 1
                good = given == {} if function == "none" else (
                    given.get("on") in (True, False) and given.get("mood") in ("warm", "cold") and
                    given.get("level", 1) in range(1, 21) and set(given) <= {"on", "mood", "level"})
                expect(f"{name}: a call is valid", function in ("light", "none") and good, call)
        expect(f"{name}: a call for each seed", n_good >= 6, n_good)
        if name == "llama 3":  # JSON in the middle of an answer is none
            text = 'See {"name": "x"}'
            reply = json.loads(post(server, "/v1/chat/completions", {
                "messages": ASK, "tools": MANY, "grammar": grammar(text)}))
            expect("text with a name", reply["choices"][0]["message"]["content"] == text, reply)


def check_required(program, folder, name):
    """A required call has the form of the template, so that the next prompt holds what was written."""
    path = os.path.join(folder, "required.gguf")
    given = template(LLAMA) if name == "llama 3" else FORMATS[name][0]
    tiny_model.write_model(path, n_ctx=4096, template=given)
    with Server(program, ["-t", "1", "-c", "4096"], model=path, sessions=False) as server:
        for seed in range(3):
            body = {"messages": ASK, "tools": MANY, "tool_choice": {"type": "function", "function": {"name": "light"}},
                    "temperature": 1.5, "seed": seed, "max_tokens": 2000}
            reply = json.loads(post(server, "/v1/chat/completions", body))
            answer, held = reply["choices"][0]["message"], reply["usage"]["total_tokens"]
            made = [one["function"] for chunk in data_of(post(server, "/v1/chat/completions", {**body, "stream": True}))
                    for choice in chunk["choices"] for one in choice["delta"].get("tool_calls", [])]
            expect(f"{name}: a required call", len(answer.get("tool_calls", [])) == 1 and
                   answer["content"] in (None, "<response></response>"), answer)
            function = answer["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            expect(f"{name}: required, and valid", function["name"] == "light" and arguments["mood"] in ("warm", "cold") and
                   arguments["on"] in (True, False), function)
            expect(f"{name}: the same in a stream", made[0]["name"] == "light" and json.loads(
                "".join(one["arguments"] for one in made)) == arguments, made)
            history = ASK + [answer, {**RESULT, "tool_call_id": answer["tool_calls"][0]["id"]}]
            usage = json.loads(post(server, "/v1/chat/completions", {
                "messages": history, "tools": MANY, "max_tokens": 1}))["usage"]
            kept = usage["prompt_tokens_details"]["cached_tokens"]
            if name in READ_ON:
                expect(f"{name}: the session goes on", kept >= held - 4, (kept, held, usage))


# ---- thoughts that the prompt starts ----

def check_started_thoughts(program, folder):
    """A random model never ends the thoughts that its prompt starts."""
    path = os.path.join(folder, "started.gguf")
    tiny_model.write_model(path, n_ctx=4096, template=tiny_model.TEMPLATE.replace(
        "assistant\n'}}{% endif", "assistant\n<think>'}}{% endif"))
    exact = {"seed": 1, "temperature": 0.8, "max_tokens": 16, "ignore_eos": True}
    with Server(program, ["-t", "1", "-c", "2048"], model=path, sessions=False) as server:
        message = json.loads(post(server, "/v1/chat/completions", {"messages": ASK, **exact}))
        message = message["choices"][0]["message"]
        thoughts = message.get("reasoning_content", "")
        expect("started thoughts", thoughts and message["content"] == "", message)
        for path, field in ("/api/chat", "message"), ("/api/generate", None):
            for streamed in False, True:
                out = post(server, path, {
                    "messages": ASK, "prompt": "q", "stream": streamed, "ignore_eos": True,
                    "options": {"seed": 1, "temperature": 0.8, "num_predict": 16}})
                lines = [json.loads(line) for line in out.split("\n") if line]
                parts = [line[field] if field else line for line in lines]
                got = "".join(part.get("thinking", "") for part in parts)
                rest = "".join(part.get("content", "") + part.get("response", "")
                               for part in parts)
                expect(f"{path}: started thoughts", got == thoughts and rest == "", out)
        message = json.loads(post(server, "/v1/chat/completions", {
            "messages": ASK, "response_format": {"type": "json_schema", "json_schema": {
                "schema": {"const": {"on": True}}}}}))["choices"][0]["message"]
        expect("constrained answers have no thoughts", json.loads(message["content"]) == {"on": True}
               and "reasoning_content" not in message, message)
        message = json.loads(post(server, "/v1/chat/completions", {
            "messages": ASK, "tools": [SWITCH], "tool_choice": "required"}))
        message = message["choices"][0]["message"]
        expect("a required call", message.get("tool_calls") and
               message["tool_calls"][0]["function"]["name"] == "switch", message)
        for body, param in (({"reasoning_format": "x"}, "reasoning_format"),
                            ({"reasoning_effort": 1}, "reasoning_effort")):
            reply = server.post("/v1/chat/completions", {"messages": ASK, **body})
            expect(f"{param} is checked", reply.status == 400 and
                   reply.json()["error"]["param"] == param, reply.body)


def check_variables(program, folder):
    """What each API says about thoughts reaches the template."""
    path = os.path.join(folder, "variables.gguf")
    tiny_model.write_model(path, n_ctx=4096, template=(
        "{{ '[' ~ reasoning_effort ~ '|' ~ enable_thinking ~ ']' }}") + tiny_model.TEMPLATE)
    with Server(program, ["-t", "1", "-c", "2048"], model=path, sessions=False) as server:
        for body, want in (({}, "[|]"), ({"reasoning_effort": "low"}, "[low|]"),
                           ({"reasoning_effort": "none"}, "[none|False]"),
                           ({"reasoning_effort": "low", "chat_template_kwargs": {
                               "reasoning_effort": "high", "enable_thinking": True}}, "[high|True]")):
            got = json.loads(post(server, "/apply-template", {"messages": ASK, **body}))
            expect(f"variables of {body}", got["prompt"].startswith(want), got)


def main():
    names = sys.argv[2:] or list(FORMATS)
    with tempfile.TemporaryDirectory(prefix="lowkey-formats-") as folder:
        for name in names:
            path = os.path.join(folder, "model.gguf")
            tiny_model.write_model(path, n_ctx=4096, template=FORMATS[name][0])
            with Server(sys.argv[1], ["-t", "1", "-c", "4096"], model=path,
                        sessions=False) as server:
                text = FORMATS[name][1]
                check_format(server, name, text, FORMATS[name][2])
            if name in BEGINS:
                check_lazy(sys.argv[1], folder, name)
                check_required(sys.argv[1], folder, name)
        if not sys.argv[2:]:
            check_lazy(sys.argv[1], folder, "llama 3")
            check_required(sys.argv[1], folder, "llama 3")
            check_started_thoughts(sys.argv[1], folder)
            check_variables(sys.argv[1], folder)
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
