#!/usr/bin/env python3
"""Runs agents from PyPI against a server, each for a few turns, and prints what they cost.

usage: agent_packages.py LOWKEY MODEL FOLDER [NAME...]

FOLDER/NAME is a virtual environment with the package NAME (python3 -m venv FOLDER/NAME; FOLDER/NAME/bin/pip install
...): llm, openai-agents, pydantic-ai-slim[openai] as pydantic-ai, smolagents[openai] as smolagents, mini-swe-agent,
aider-chat as aider. Those that are not there are skipped. A turn works if the server answers it and the agent goes
on. A small model seldom calls tools by itself, so calls are required where an agent can require them.

  requests    that the agent made, and how many of them got 200
  tokens      of their prompts
  read        of these evaluated, the others were in the cache
  first byte  the longest time from a request to the first text, in seconds
"""
import os
import re
import subprocess
import sys
import tempfile

from serve_process import Server

TURNS = {}


def turns(function):
    """The function's text runs in the agent's own environment, with BASE set to the server's address."""
    TURNS[function.__name__.replace("_", "-")] = function
    return function


@turns
def llm(base, folder):
    with open(os.path.join(folder, "extra-openai-models.yaml"), "w", encoding="ascii") as file:
        file.write(f"- model_id: here\n  model_name: any\n  api_base: {base}/v1\n  api_key_name: none\n"
                   "  supports_tools: true\n")
    tool = "def add(a: int, b: int) -> int:\n    'Add two numbers.'\n    return a + b\n"
    options = ["-o", "max_tokens", "40", "-o", "temperature", "0"]
    return [["llm", "-m", "here", "--key", "none", *options, "Name a river."],
            ["llm", "-c", "--key", "none", *options, "And another one?"],
            ["llm", "-c", "--key", "none", *options, "A third one."],
            ["llm", "-m", "here", "--key", "none", *options, "--functions", tool, "What is 2 and 3?"]]


OPENAI_AGENTS = '''
import asyncio, sys
import agents
from openai import AsyncOpenAI
agents.set_tracing_disabled(True)
client = AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=900)

@agents.function_tool
def rivers(country: str) -> str:
    "Names of rivers in a country."
    return "Rhine, Elbe, Weser"

def run(model):
    settings = agents.ModelSettings(tool_choice="required", max_tokens=400, temperature=0)
    agent = agents.Agent(name="a", instructions="Answer in one sentence. Use the tool for rivers.", tools=[rivers],
                         model=model, model_settings=settings)
    history = []
    for text in ("Name rivers in Germany.", "Which one is the longest?", "And the second?"):
        result = agents.Runner.run_sync(agent, history + [{"role": "user", "content": text}], max_turns=3)
        history = result.to_input_list()
    calls = [item for item in history if item.get("type") == "function_call"]
    assert len(calls) == 3, history

run(agents.OpenAIChatCompletionsModel("any", client))
run(agents.OpenAIResponsesModel("any", client))
'''

PYDANTIC_AI = '''
import sys
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

class River(BaseModel):
    name: str
    is_long: bool

model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none"))
settings = {"max_tokens": 400, "temperature": 0, "timeout": 900}
agent = Agent(model, instructions="Answer briefly.", output_type=River, model_settings=settings)
history = []
for text in ("Name a river.", "Another one.", "A third one."):
    result = agent.run_sync(text, message_history=history)
    assert isinstance(result.output, River), result
    history = result.all_messages()
text = Agent(model, instructions="Answer briefly.", model_settings={**settings, "max_tokens": 40})
text.run_sync("And now?", message_history=text.run_sync("Name a lake.").all_messages())
'''

SMOLAGENTS = '''
import sys
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def rivers(country: str) -> str:
    """Names of rivers in a country.

    Args:
        country: its name
    """
    return "Rhine, Elbe, Weser"

model = OpenAIServerModel("any", api_base=sys.argv[1] + "/v1", api_key="none", max_tokens=60, temperature=0,
                          client_kwargs={"timeout": 900, "max_retries": 0})
agent = ToolCallingAgent(tools=[rivers], model=model, max_steps=3, verbosity_level=0)
agent.run("Name rivers in Germany.")
agent.run("Which one is the longest?", reset=False)
'''


def script(folder, text, base):
    """Tools are read from their source, so it must be a file."""
    path = os.path.join(folder, "turns.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return [["python", path, base]]


@turns
def openai_agents(base, folder):
    return script(folder, OPENAI_AGENTS, base)


@turns
def pydantic_ai(base, folder):
    return script(folder, PYDANTIC_AI, base)


@turns
def smolagents(base, folder):
    return script(folder, SMOLAGENTS, base)


@turns
def mini_swe_agent(base, folder):
    return [["mini", "-y", "--exit-immediately", "-m", "openai/any", "-l", "0", "-t", "Print the date.",
             "-c", "mini.yaml", "-c", "agent.step_limit=3", "-c", "model.model_kwargs.max_tokens=60",
             "-c", f"model.model_kwargs.api_base={base}/v1", "-c", "model.cost_tracking=ignore_errors",
             "-o", os.path.join(folder, "trajectory.json")]]


@turns
def aider(base, folder):
    options = ["--model", "openai/any", "--yes-always", "--no-git", "--no-show-model-warnings", "--no-stream",
               "--no-check-update", "--no-analytics", "--map-tokens", "0", "--edit-format", "whole"]
    with open(os.path.join(folder, "river.py"), "w", encoding="ascii") as file:
        file.write("def longest():\n    return 'Rhine'\n")
    return [["aider", *options, "--restore-chat-history", "-m", text, "river.py"]
            for text in ("Say what this file does.", "Return 'Elbe' instead.", "Undo that.")]


def run(program, model, folder, name):
    """A line of the table, or None; and what went wrong."""
    place = os.path.join(folder, name, "bin")
    with tempfile.TemporaryDirectory(prefix="lowkey-agent-") as work:
        with Server(program, ["-c", "8192", "--kv", "best-4", "--log", "--time-limit", "900"], model=model) as server:
            base = f"http://127.0.0.1:{server.port}"
            keep = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
            environment = {**keep, "PATH": f"{place}:/usr/bin:/bin", "HOME": work, "LLM_USER_PATH": work,
                           "OPENAI_API_KEY": "none", "OPENAI_API_BASE": base + "/v1", "OPENAI_BASE_URL": base + "/v1",
                           "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_CONFIGURED": "true",
                           "MSWEA_GLOBAL_CONFIG_DIR": work, "MSWEA_SILENT_STARTUP": "1", "AGENTS_NO_TRACING": "1"}
            wrong = ""
            for command in TURNS[name](base, work):
                command = [os.path.join(place, command[0]), *command[1:]]
                try:
                    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True,
                                          timeout=1200, check=False, stdin=subprocess.DEVNULL)
                except subprocess.TimeoutExpired:
                    wrong = wrong or "it did not end within 20 minutes"
                    continue
                if done.returncode:
                    wrong = wrong or f"status {done.returncode}: {(done.stderr or done.stdout)[-600:]}"
            log = server.messages()
    lines = [line for line in log.split("\n") if "POST /v1/" in line]
    good = [line for line in lines if re.search(r"POST \S+ 200 ", line)]
    numbers = [re.search(r"prefill (\d+) tokens(?: \((\d+) more reused\))?", line) for line in good]
    read = sum(int(n[1]) for n in numbers if n)
    tokens = read + sum(int(n[2] or 0) for n in numbers if n)
    first = [float(n[1]) / 1000 for n in re.finditer(r"first after (\d+) ms", log)]
    first += [float(n[1]) for n in re.finditer(r"first after ([\d.]+) s", log)]
    if len(good) < len(lines) or not good:
        wrong = wrong or f"{len(lines) - len(good)} requests failed: {[line for line in lines if line not in good][:2]}"
    return f"| {name} | {len(good)}/{len(lines)} | {tokens:,} | {read:,} | {max(first, default=0):.1f} |", wrong


def main():
    program, model, folder = sys.argv[1:4]
    n_run = n_wrong = 0
    print("| agent | answered | tokens of prompts | read | first text, s |\n|---|---:|---:|---:|---:|")
    for name in sys.argv[4:] or TURNS:
        if not os.path.exists(os.path.join(folder, name, "bin", "python")):
            print(f"skipped: {name} is not in {folder}")
            continue
        line, wrong = run(program, model, folder, name)
        n_run += 1
        n_wrong += bool(wrong)
        print(line, flush=True)
        if wrong:
            print(f"FAILED: {name}: {wrong}", flush=True)
    if not n_run:
        print("no agent is installed")
        sys.exit(77)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main()
