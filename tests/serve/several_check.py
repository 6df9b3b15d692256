#!/usr/bin/env python3
"""Serves two tiny models from a folder.

usage: several_check.py PROGRAM

Prints one line per case that fails, and exits with status 1 if there is one.
"""
import os
import subprocess
import sys
import tempfile

import tiny_model
from serve_process import Server

program = sys.argv[1]
failures = []
TEXT = "Once upon a time there was a small town at the river, and in it lived a miller. "


def check(what, got, expected=True):
    if got != expected:
        failures.append(what)
        print(f"FAILED: {what}: {got!r}, expected {expected!r}", flush=True)


def complete(server, model, **more):
    return server.post("/v1/completions", {"model": model, "prompt": TEXT, "max_tokens": 4, "temperature": 0, **more},
                       timeout=60)


def reused(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve_in_turn(directory, folder):
    # "a" from -m, "b" from the folder, with room for the caches of one.
    options = ["-t", "1", "-c", "2k", "--cache-limit", "64", "--max-memory", "96", "--models", folder]
    with Server(program, options, model=os.path.join(directory, "a.gguf"), directory=directory) as server:
        names = [model["id"] for model in server.ask("GET", "/v1/models").json()["data"]]
        check("the models", names, ["a", "b"])
        check("a file that is left out", "left out cut: " in server.messages())
        first = {name: complete(server, name) for name in names}
        check("statuses", [reply.status for reply in first.values()], [200, 200])
        for name in names:
            again = complete(server, name)
            check(f"{name} reuses its session", reused(again) > 32)
            check(f"{name} answers the same", again.json()["choices"], first[name].json()["choices"])
        text = server.ask("GET", "/metrics").body.decode()
        check("loads", [f'model_loads_total{{model="{name}"}} 2' in text for name in names], [True, True])
        check("an unknown name", complete(server, "c").status, 404)
        show = server.post("/api/show", {"name": "b"})
        check("/api/show", [show.status, server.ask("GET", "/props?model=a").json()["model_alias"]], [200, "a"])
        check("sessions by model", complete(server, "a").status, 200)
        slots = server.ask("GET", "/slots?model=a").json()["slots"]
        check("/slots", {slot["model"] for slot in slots}, {"a"})
        saved = server.post(f"/slots/{slots[0]['id']}?action=save&model=a", {"filename": "kept"})
        check("a session by name", saved.status, 200)


def cut_a_mapped_file(directory):
    """The file of a model that is served becomes shorter: one line, and the end."""
    path = os.path.join(directory, "short.gguf")
    tiny_model.write_model(path)
    with Server(program, ["-t", "1", "-c", "2k"], model=path, directory=directory) as server:
        os.truncate(path, 4096)
        server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 4}, timeout=30)
        check("the end of the server", server.process.wait(30), 1)
        check("what it says", "lowkey: a mapped file can no longer be read" in server.messages())


def refuse(model, folder, words, *options):
    result = subprocess.run([program, "serve", "-m", model, "--models", folder, "--port", "0", *options],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    check(f"{options} is refused", [result.returncode, words in result.stderr], [1, True])


def main():
    with tempfile.TemporaryDirectory(prefix="lowkey-several-") as directory:
        folder = os.path.join(directory, "models")
        first = os.path.join(directory, "a.gguf")
        os.mkdir(folder)
        tiny_model.write_model(first)
        tiny_model.write_model(os.path.join(folder, "b.gguf"), seed=2)
        with open(first, "rb") as whole, open(os.path.join(folder, "cut.gguf"), "wb") as cut:
            cut.write(whole.read(3000))
        serve_in_turn(directory, folder)
        cut_a_mapped_file(directory)
        refuse(first, folder, "--name is for a server with one model", "--name", "x")
        refuse(first, folder, "no model fits the limit of 8.00 MiB; use --max-memory ", "--max-memory", "8",
               "--cache-limit", "8")
        refuse(first, directory + "/none", "--models: no file *.gguf in ")
        refuse(first, directory, "two models are called a: ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
