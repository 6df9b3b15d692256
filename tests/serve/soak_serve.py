#!/usr/bin/env python3
"""Clients that behave, cancel, hang and send garbage, all at once, for some time.

usage: soak_serve.py PROGRAM SECONDS [serve option...]

Prints what the honest clients waited for (time to the first token and whole answers), how the server's
resident memory went, and that every session is idle at the end. Status 1 where something is stuck, the
server died, or an honest client got no answer.
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

program, seconds, options = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
server = subprocess.Popen([program, "serve", "--port", "0", *options], stdout=subprocess.PIPE, text=True)
port = int(re.search(r":(\d+), cache", server.stdout.readline()).group(1))
until = time.monotonic() + seconds
first, whole, refused, failed = [], [], [0], []
words = "river stone light paper house cloud winter answer garden music".split()


def body(random_, **more):
    text = " ".join(random_.choice(words) for _ in range(random_.randint(3, 200)))
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": random_.randint(4, 40), "stream": True, **more})


def honest(seed):
    random_ = random.Random(seed)
    while time.monotonic() < until:
        began, seen, done = time.monotonic(), None, False
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("POST", "/v1/chat/completions", body(random_), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status in (429, 503):
                refused[0] += 1
                reply.read()
                time.sleep(0.5)
                continue
            for line in reply:
                if line.startswith(b"data: {") and seen is None:
                    seen = time.monotonic() - began
                done = done or line.startswith(b"data: [DONE]")
            connection.close()
        except OSError as error:
            failed.append(repr(error))
            continue
        if reply.status != 200 or not done:
            failed.append(f"status {reply.status}, whole: {done}")
            continue
        first.append(seen)
        whole.append(time.monotonic() - began)


def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def request(text):
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


def cancels(random_):
    with connect() as s:
        s.sendall(request(body(random_, n=random_.choice([1, 2]))))
        time.sleep(random_.random() * 0.5)


def hangs(random_):
    with connect() as s:
        s.sendall(request(body(random_))[:random_.choice([5, 60, 100000])])
        time.sleep(random_.random() * 3)


def garbage(random_):
    with connect() as s:
        kind = random_.randrange(3)
        if kind == 0:
            s.sendall(random_.randbytes(random_.randint(1, 2000)))
        elif kind == 1:
            text = bytearray(request(body(random_)))
            for _ in range(random_.randint(1, 20)):
                text[random_.randrange(len(text))] = random_.randrange(256)
            s.sendall(text)
        else:
            s.sendall(request("{" * random_.randint(1, 5000)))
        s.settimeout(0.2)
        try:
            s.recv(1000)
        except OSError:
            pass


def bad(act, seed):
    random_ = random.Random(seed)
    while time.monotonic() < until:
        try:
            act(random_)
        except OSError:
            time.sleep(0.05)


def resident():
    with open(f"/proc/{server.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def slots():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/slots")
    return json.loads(connection.getresponse().read())


threads = [threading.Thread(target=honest, args=(i,)) for i in range(4)]
threads += [threading.Thread(target=bad, args=(act, 10 + i)) for i, act in enumerate([cancels, cancels, hangs, garbage])]
for thread in threads:
    thread.start()
memory = []
while time.monotonic() < until and server.poll() is None:
    time.sleep(min(1.0, seconds / 10))
    memory.append(resident())
for thread in threads:
    thread.join()
stuck = True
for _ in range(50):
    state = slots()
    stuck = state["waiting"] > 0 or any(slot["state"] != "idle" for slot in state["slots"])
    if not stuck:
        break
    time.sleep(0.2)
server.send_signal(signal.SIGTERM)
status = server.wait(timeout=30)


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


half = len(memory) // 2
print(f"honest answers: {len(whole)}, refused for want of room: {refused[0]}, failed: {len(failed)} {failed[:3]}")
for name, values in (("first token", first), ("whole answer", whole)):
    print(f"{name}: median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s, longest {max(values, default=0):.2f} s")
print(f"resident: {memory[0]:.0f} MiB at the start, {max(memory[:half or 1]):.0f} at most in the first half, {max(memory[half:]):.0f} in the second")
print(f"stuck sessions: {stuck}; status {status}")
sys.exit(1 if stuck or status or failed or not whole else 0)
