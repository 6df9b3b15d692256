#!/usr/bin/env python3
"""Soak test of the server: well-behaved clients next to ones that cancel, hang and send garbage.

usage: soak_serve.py PROGRAM SECONDS [serve option...]

LOWKEY_SOAK_CLIENTS is the number of well-behaved clients (default 4). With LOWKEY_TEST_RANKS=N the
server has N ranks.

Prints the latencies of the well-behaved clients (first token and whole answer), the resident memory
of the server, and whether all sessions are idle at the end. Exits with status 1 if a session is
stuck, the server died, or a well-behaved client got no answer.
"""
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import program_ranks  # pylint: disable=wrong-import-position

program, seconds, options = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
server = subprocess.Popen(program_ranks.command(program, "serve", "--port", "0", *options),
                          stdout=subprocess.PIPE, text=True, env=program_ranks.environment())
port = int(re.search(r":(\d+), cache", server.stdout.readline()).group(1))
pid = program_ranks.rank_pid(server.pid, 0)
end_time = time.monotonic() + seconds
first_token, whole_answer, n_refused, failures = [], [], [0], []
words = "river stone light paper house cloud winter answer garden music".split()


def make_body(rng, **more):
    text = " ".join(rng.choice(words) for _ in range(rng.randint(3, 200)))
    return json.dumps({"messages": [{"role": "user", "content": text}],
                       "max_tokens": rng.randint(4, 40), "stream": True, **more})


# ---- well-behaved clients ----

def run_good_client(seed):
    rng = random.Random(seed)
    while time.monotonic() < end_time:
        start, first, done = time.monotonic(), None, False
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("POST", "/v1/chat/completions", make_body(rng),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status in (429, 503):
                n_refused[0] += 1
                reply.read()
                time.sleep(0.5)
                continue
            for line in reply:
                if line.startswith(b"data: {") and first is None:
                    first = time.monotonic() - start
                done = done or line.startswith(b"data: [DONE]")
            connection.close()
        except OSError as error:
            failures.append(repr(error))
            continue
        if reply.status != 200 or not done:
            failures.append(f"status {reply.status}, complete: {done}")
            continue
        first_token.append(first)
        whole_answer.append(time.monotonic() - start)


# ---- misbehaving clients: each function makes one connection ----

def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def make_request(body):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


def cancel(rng):
    with connect() as s:
        s.sendall(make_request(make_body(rng, n=rng.choice([1, 2]))))
        time.sleep(rng.random() * 0.5)


def hang(rng):
    with connect() as s:
        s.sendall(make_request(make_body(rng))[:rng.choice([5, 60, 100000])])
        time.sleep(rng.random() * 3)


def send_garbage(rng):
    with connect() as s:
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


def run_bad_client(misbehave, seed):
    rng = random.Random(seed)
    while time.monotonic() < end_time:
        try:
            misbehave(rng)
        except OSError:
            time.sleep(0.05)


# ---- the run ----

def resident_mib():
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def get_slots():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/slots")
    return json.loads(connection.getresponse().read())


threads = [threading.Thread(target=run_good_client, args=(i,)) for i in range(int(os.environ.get("LOWKEY_SOAK_CLIENTS", "4")))]
threads += [threading.Thread(target=run_bad_client, args=(misbehave, 10 + i))
            for i, misbehave in enumerate([cancel, cancel, hang, send_garbage])]
for thread in threads:
    thread.start()
memory = []
while time.monotonic() < end_time and server.poll() is None:
    time.sleep(min(1.0, seconds / 10))
    memory.append(resident_mib())
for thread in threads:
    thread.join()
stuck = True
for _ in range(50):
    state = get_slots()
    stuck = state["waiting"] > 0 or any(slot["state"] != "idle" for slot in state["slots"])
    if not stuck:
        break
    time.sleep(0.2)
os.kill(pid, signal.SIGTERM)
status = server.wait(timeout=30)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


half = len(memory) // 2
print(f"complete answers: {len(whole_answer)} ({len(whole_answer) / seconds:.2f} per s), refused (overloaded): {n_refused[0]}, "
      f"failed: {len(failures)} {failures[:3]}")
for name, values in (("first token", first_token), ("whole answer", whole_answer)):
    print(f"{name}: median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s, "
          f"max {max(values, default=0):.2f} s")
print(f"resident: {memory[0]:.0f} MiB at the start, max {max(memory[:half or 1]):.0f} MiB in the "
      f"first half, {max(memory[half:]):.0f} MiB in the second")
print(f"stuck sessions: {stuck}; status {status}")
sys.exit(1 if stuck or status or failures or not whole_answer else 0)
