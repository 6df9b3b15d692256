#!/usr/bin/env python3
"""Soak test of the server: well-behaved clients and agents next to ones that cancel, hang and send garbage.

usage: soak_serve.py PROGRAM SECONDS [serve option...]

The server has the small limits of OPTIONS and a session directory, so sessions are evicted, stored, loaded again and
removed. It restarts at the times of RESTARTS. The model is the first LAYERS layers of SmolLM2-135M, which answer fast.
Agents send the sessions of bench/agents, with fewer turns. With LOWKEY_TEST_RANKS=N the server has N ranks.

Prints the latencies of the well-behaved clients (first token and whole answer), what agents had to have read again,
and the resident memory of the server. Exits with status 1 if
  - the server died, printed a sanitizer's report, or did not stop with status 0
  - a session is not idle at the end
  - a client got no answer, except when the server was stopped or refused it with 429 or 503
  - an agent's next turn did not find its conversation, neither in memory nor in the store, or there was no next turn
  - resident memory grew between the second and the third restart: its maximum in the last third of that time is more
    than GROWTH times its maximum in the third before (judged from 3,000 seconds on: before,
    the caches still fill)
"""
import collections
import http.client
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_process import HOST, Server, quantile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OPTIONS = ["-c", "8k", "-n", "40", "--cache-limit", "128", "--request-memory", "256", "--store-limit", "256"]
RESTARTS = 0.1, 0.2, 0.95  # parts of the time
LONGER = 10  # a run goes on for up to so many times its seconds until an agent has continued a conversation
LAYERS = 2
GROWTH = 1.03
FOUND = 0.9  # of what the server held of a conversation, at least this part must be found
CLIENTS, AGENTS = 4, 2
WORDS = "river stone light paper house cloud winter answer garden music".split()


def load_agents():
    """bench/agents as a module, with sessions that fit into the context."""
    path = os.path.join(TOP, "bench", "agents")
    sys.path.insert(0, os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader("agents", path)
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("agents", loader))
    loader.exec_module(module)
    module.TURNS, module.CANCELLED, module.TITLES, module.EDIT_AT, module.EDITED = 12, (3, 7), (1, 5), 9, 6
    return module


class Over(Exception):
    """The time is over, or the conversation does not fit into the context any more."""


class Soak:
    """What all clients share: the server, and what happened."""

    def __init__(self, server, seconds):
        self.server, self.seconds = server, seconds
        self.begin = time.monotonic()
        self.up, self.n_start, self.died = threading.Event(), 0, False
        self.up.set()
        self.first_token, self.whole_answer, self.failures, self.lost = [], [], [], []
        self.refused = collections.Counter()
        self.n_interrupted = self.n_agent = self.n_found = self.n_prompt = self.n_cached = 0

    def running(self):
        seconds = time.monotonic() - self.begin
        return not self.died and (seconds < self.seconds or not self.n_found and seconds < LONGER * self.seconds)

    def restart(self):
        self.up.clear()
        self.n_start += 1
        _, status = self.server.stop(timeout=120)
        self.server.start()
        self.up.set()
        return status

    def ask(self, path, body, headers=()):
        """Stream an answer, with as many tries as it takes. Returns (seconds to the first line of data, seconds, text)."""
        while self.running():
            self.up.wait(10)
            n_start, start, first, lines = self.n_start, time.monotonic(), None, []
            connection = http.client.HTTPConnection(HOST, self.server.port, timeout=300)
            try:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **dict(headers)})
                reply = connection.getresponse()
                for line in reply:
                    if first is None and line.startswith((b"data: {", b"{")):
                        first = time.monotonic() - start
                    lines.append(line)
                text = b"".join(lines).decode("utf-8", "replace")
                wrong = reply.status != 200 or re.search(r'"error":\s*[{"]', text)
            except (OSError, http.client.HTTPException) as error:
                wrong, text, reply = True, repr(error), None
            finally:
                connection.close()
            if not wrong:
                return first, time.monotonic() - start, text
            if reply and reply.status in (429, 503):
                self.refused[re.search(r'"message":"(.{0,60})|$', text).group(1)] += 1
                time.sleep(0.5)
            elif n_start != self.n_start or not self.up.is_set():
                self.n_interrupted += 1
            elif reply and reply.status == 400 and "context" in text:
                raise Over
            else:
                self.failures.append(f"{path}: {reply.status if reply else ''} {text[-200:]}")
                time.sleep(0.5)
        raise Over


# ---- well-behaved clients ----

def make_body(rng, **more):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 200)))
    return {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(4, 40), "stream": True, **more}


def run_client(soak, seed):
    rng = random.Random(seed)
    while soak.running():
        first, whole, text = soak.ask("/v1/chat/completions", make_body(rng))
        if not text.rstrip().endswith("data: [DONE]"):
            soak.failures.append(f"not complete: {text[-200:]}")
        soak.first_token.append(first)
        soak.whole_answer.append(whole)


class Agent:
    """Sends the sessions of bench/agents, of one client after the other."""

    def __init__(self, soak, agents, seed):
        self.soak, self.agents, self.rng, self.n_request, self.held = soak, agents, random.Random(seed), 0, None

    def run(self):
        clients = list(self.agents.CLIENTS.values())
        for make in itertools.cycle(clients[self.rng.randrange(len(clients)):] + clients):
            if not self.soak.running():
                return
            self.client, self.held = make(), None
            try:
                self.agents.Session(self.client, self.send, self.rng.randint(100, 600)).run()
            except Over:
                continue

    def send(self, messages, main=True, cancel=False):
        soak, client = self.soak, self.client
        self.n_request += 1
        body = client.body(messages, main, self.n_request) | {"stream": True}
        if cancel:
            leave(soak, client.path, body, self.rng)
            return {}
        n_start = soak.n_start
        _, _, text = soak.ask(client.path, body, client.headers.items())
        events = [json.loads(line) for line in (line.removeprefix("data: ") for line in text.split("\n"))
                  if line.startswith("{")]
        prompt, cached, answer = client.usage(events)
        soak.n_agent += 1
        if main and cached is not None:
            soak.n_prompt, soak.n_cached = soak.n_prompt + prompt, soak.n_cached + cached
            # A shorter prompt than before: turns were left out, because the context is full. And a stop keeps
            # conversations that wait for their client, not those whose request it interrupts.
            if self.held and messages[:len(self.held[0])] == self.held[0] and prompt >= self.held[1] and n_start == soak.n_start:
                soak.n_found += 1
                if cached < FOUND * self.held[1]:
                    soak.lost.append(f"{client.path}: {cached} of {self.held[1]} tokens found; start {self.held[2]}, {soak.n_start}")
            self.held = list(messages), prompt, soak.n_start
        return {"role": "assistant", "content": answer or "-"}


# ---- misbehaving clients: each function makes one connection ----

def connect(soak):
    soak.up.wait(10)
    return socket.create_connection((HOST, soak.server.port), timeout=30)


def make_request(body, path="/v1/chat/completions"):
    body = body if isinstance(body, str) else json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body.encode())}"
    return f"{head}\r\n\r\n{body}".encode()


def leave(soak, path, body, rng):
    """Disconnect while the prompt is read or the answer comes."""
    try:
        with connect(soak) as s:
            s.sendall(make_request(body, path))
            time.sleep(rng.random() * 0.5)
    except OSError:
        time.sleep(0.05)


def cancel(soak, rng):
    leave(soak, "/v1/chat/completions", make_body(rng, n=rng.choice([1, 2])), rng)


def hang(soak, rng):
    with connect(soak) as s:
        s.sendall(make_request(make_body(rng))[:rng.choice([5, 60, 100000])])
        time.sleep(rng.random() * 3)


def send_garbage(soak, rng):
    with connect(soak) as s:
        kind = rng.randrange(3)
        if kind == 0:
            s.sendall(rng.randbytes(rng.randint(1, 2000)))
        elif kind == 1:
            text = bytearray(make_request(make_body(rng)))
            for _ in range(rng.randint(1, 20)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            s.sendall(text)
        else:
            s.sendall(make_request("{" * rng.randint(1, 5000)))
        s.settimeout(0.2)
        try:
            s.recv(1000)
        except OSError:
            pass


def run_bad_client(soak, misbehave, seed):
    rng = random.Random(seed)
    while soak.running():
        try:
            misbehave(soak, rng)
        except OSError:
            time.sleep(0.05)


# ---- the run ----

def run_over(function, *arguments):
    try:
        function(*arguments)
    except Over:
        pass


def start_clients(soak, agents):
    jobs = [(run_client, soak, i) for i in range(CLIENTS)]
    jobs += [(run_bad_client, soak, misbehave, 10 + i) for i, misbehave in enumerate([cancel, cancel, hang, send_garbage])]
    jobs += [(Agent(soak, agents, 20 + i).run,) for i in range(AGENTS)]
    threads = [threading.Thread(target=run_over, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def watch(soak):
    """Restart and sample the resident memory until the time is over. Returns the samples, [(part of the time, MiB)],
    and the statuses of the stops."""
    samples, statuses, moments = [], [], list(RESTARTS)
    while soak.running():
        time.sleep(min(1.0, soak.seconds / 60))
        part = (time.monotonic() - soak.begin) / soak.seconds
        if moments and part >= moments[0]:
            moments.pop(0)
            statuses.append(soak.restart())
        soak.died = not soak.server.is_alive()
        samples.append((part, soak.server.resident_mib()))
    return samples, statuses


def is_stuck(soak):
    for _ in range(50):
        state = soak.server.ask("GET", "/slots", timeout=30).json()
        if state and state["waiting"] == 0 and all(slot["state"] == "idle" for slot in state["slots"]):
            return False
        time.sleep(0.2)
    return True


def report(soak, samples, stuck, statuses):
    """Print what happened. Returns whether all is well."""
    n = len(soak.whole_answer)
    print(f"complete answers: {n} ({n / soak.seconds:.2f} per s), of agents: {soak.n_agent}, refused (overloaded): "
          f"{soak.refused.total()} {soak.refused.most_common(2)}, interrupted by {soak.n_start} restarts: {soak.n_interrupted}, failed: {len(soak.failures)} "
          f"{soak.failures[:3]}")
    for name, values in (("first token", soak.first_token), ("whole answer", soak.whole_answer)):
        print(f"{name}: median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s, max {max(values, default=0):.2f} s")
    print(f"agents: {soak.n_found} turns that continue a conversation, lost: {len(soak.lost)} {soak.lost[:3]}; "
          f"{soak.n_cached} of {soak.n_prompt} tokens of prompts reused")
    parts = [[mib for part, mib in samples if k <= part * 12 < k + 1] for k in range(12)]
    print("resident, maximum of each twelfth of the time, MiB: " + " ".join(f"{max(p, default=0):.0f}" for p in parts))
    start, end = RESTARTS[1:]
    third = (end - start) / 3
    middle, last = (max((mib for part, mib in samples if at <= part < at + third), default=0) for at in (start + third, end - third))
    judged = soak.seconds >= 3000
    print(f"resident without a restart: {middle:.0f} MiB in the second third, {last:.0f} MiB in the last one; "
          f"{'at most' if judged else 'not judged:'} {GROWTH * middle:.0f}")
    reports = [line for line in soak.server.messages().splitlines() if "Sanitizer" in line or "runtime error" in line]
    print(f"stuck sessions: {stuck}; statuses {statuses}; sanitizers: {len(reports)} {reports[:3]}")
    wrong = {"stuck sessions": stuck, "a stop with another status": any(statuses), "failed requests": soak.failures,
             "lost conversations": soak.lost, "a sanitizer's report": reports, "no complete answer": not n,
             "no agent continued a conversation": not soak.n_found, "resident memory grew": judged and last > GROWTH * middle}
    for name in filter(wrong.get, wrong):
        print("failed:", name)
    return not any(wrong.values())


def main():
    program, seconds, options = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    agents = load_agents()
    whole = subprocess.run([os.path.join(TOP, "scripts", "fetch-model"), "smollm2"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "layers.gguf")
        agents.write_first_layers(whole, model, LAYERS)
        return run(program, seconds, options, model, agents)


def run(program, seconds, options, model, agents):
    with Server(program, OPTIONS + options, model=model) as server:
        soak = Soak(server, seconds)
        threads = start_clients(soak, agents)
        samples, statuses = watch(soak)
        for thread in threads:
            thread.join()
        stuck = is_stuck(soak)
        statuses.append(server.stop(timeout=120)[1])
        return 0 if report(soak, samples, stuck, statuses) else 1


if __name__ == "__main__":
    sys.exit(main())
