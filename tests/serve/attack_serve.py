#!/usr/bin/env python3
"""An attack mix against a server, next to honest clients whose latency is measured all the time.

usage: attack_serve.py PROGRAM [-m MODEL] [-s SECONDS] [-k KIND,...] [--quick] [-o FILE]
                       [-- serve option...]
       attack_serve.py --list

For each kind of attack a server is started on 127.0.0.1, with a tiny random model if none is given.
Four honest clients send short chat completions: first alone, then while the attack runs. Then the
server gets SIGTERM while the attack goes on. The table shows, for each kind:

  alone, beside   median and 99th percentile of the honest clients' latency, in milliseconds
  failed          honest requests without a complete answer, of all that began beside the attack
  peak, CPU       peak resident memory in MiB, CPU seconds of the server during the attack
  stop            seconds from SIGTERM to the end of the process
  stored          sessions that the server stored; the honest clients have four
  verdict         ok, or what was not held: see the limits of the options

Attackers connect from 127.0.0.2, so limits for one address do not affect the honest clients at
127.0.0.1. They run in a process of their own and send the same requests in each run.
Exit status 1 if a verdict is not ok.
"""
import argparse
import json
import random
import select
import socket
import subprocess
import sys
import threading
import time

import attack_bodies as bodies
from serve_process import HOST, MIB, Server, ask, quantile, raw_request

ATTACKER = "127.0.0.2"
DEFAULT_OPTIONS = ["-t", "1", "--cache-limit", "512"]
HONEST_CLIENTS, HONEST_PAUSE_S, HONEST_TIMEOUT_S = 4, 0.02, 15
KEY = "honest-key-0123456789"


# ---- the attackers' process: connections ----

class Attack:
    """What the attackers' threads share: where to connect, until when, and counters."""

    def __init__(self, port, seconds, key):
        self.port, self.key, self.end = port, key, time.monotonic() + seconds
        self.counts, self.lock = {}, threading.Lock()
        self.token_of_brackets = 0

    def is_over(self):
        return time.monotonic() >= self.end

    def wait(self, seconds):
        time.sleep(max(0.0, min(seconds, self.end - time.monotonic())))

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def connect(self, receive_bytes=None, timeout=20.0):
        s = socket.socket()
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.settimeout(timeout)
        s.bind((ATTACKER, 0))
        s.connect((HOST, self.port))
        return s

    def request(self, path, body, method="POST"):
        headers = [f"Authorization: Bearer {self.key}"] if self.key else []
        return raw_request(path, body, method, headers)

    def send(self, path, body):
        return self.exchange(self.request(path, body))

    def exchange(self, request):
        """A request on a connection of its own; its status is counted. Returns the first bytes."""
        with self.connect() as s:
            s.sendall(request)
            head = s.recv(65536)
            self.count(head[9:12].decode("ascii", "replace") or "closed")
            while s.recv(1 << 20):  # the server closes, or keeps the connection
                if self.is_over() or b"Content-Length" in head:
                    break
            return head

    def hold(self, n, prepare, step, period_s, receive_bytes=None):
        """Keep n connections open: prepare(socket) once, then step(socket) every period_s seconds.
        A connection that the server closes is opened again."""
        held = []
        while not self.is_over():
            alive = []
            for s in held:
                try:
                    step(s)
                    alive.append(s)
                except OSError:
                    self.count("lost")
                    s.close()
            held = alive
            while len(held) < n and not self.is_over():
                try:
                    s = self.connect(receive_bytes, timeout=2.0)
                    held.append(s)
                    prepare(s)
                    self.count("opened")
                except OSError:
                    self.count("refused")
                    break
            self.wait(period_s if len(held) == n else min(period_s, 0.2))
        for s in held:
            s.close()


def is_closed(s):
    s.setblocking(False)
    try:
        return s.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    finally:
        s.settimeout(2.0)


def expect_open(s):
    if is_closed(s):
        raise ConnectionResetError


# ---- attacks by connections ----

def slow_headers(a, _):
    def step(s):
        expect_open(s)
        s.sendall(b"x")
    a.hold(256, lambda s: s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "),
           step, 5.0)


def idle_connections(a, _):
    a.hold(256, lambda s: (s.sendall(a.request("/health", b"", "GET")), s.recv(4096)), expect_open,
           1.0)


def silent_connections(a, _):
    a.hold(256, lambda s: None, expect_open, 1.0)


def half_bodies(a, _):
    half = a.request("/v1/chat/completions", bytes(4 * MIB))[:-2 * MIB]
    a.hold(128, lambda s: s.sendall(half), expect_open, 1.0)


def wrong_keys(a, rng):
    key = f"Authorization: Bearer wrong-{rng.randrange(10**9)}"
    a.exchange(raw_request("/v1/chat/completions", bytes(8 * MIB - 1), "POST", [key]))


def half_closed(a, _):
    with a.connect() as s:
        s.sendall(a.request("/v1/chat/completions", bodies.chat("hello", max_tokens=16)))
        s.shutdown(socket.SHUT_WR)
        a.count("answered" if s.recv(4096) else "unanswered")


def disconnect(a, rng):
    with a.connect() as s:
        s.sendall(a.request("/v1/chat/completions", bodies.endless_stream(2000)))
        s.recv(rng.randint(1, 4000))
    a.count("left")


def expect_no_reset(s):
    """Without reading."""
    poll = select.poll()
    poll.register(s, 0)  # errors and hang-ups are always reported
    if poll.poll(0):
        raise ConnectionResetError


def unread_streams(a, n):
    request = a.request("/v1/chat/completions", bodies.endless_stream(12000))
    a.hold(n, lambda s: s.sendall(request), expect_no_reset, 1.0, receive_bytes=2048)


def pipelined(a, _):
    with a.connect() as s:
        one = a.request("/v1/chat/completions", bodies.chat("hello", max_tokens=1))
        s.sendall(one * 50)
        s.settimeout(2.0)
        try:
            while s.recv(65536):
                a.count("parts")
        except OSError:
            pass


def malformed(a, rng):
    good = a.request("/v1/chat/completions", bodies.chat("hello"))
    kind = rng.randrange(7)
    if kind == 0:
        data = rng.randbytes(rng.randint(1, 4000))
    elif kind == 1:
        changed = bytearray(good)
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed)
    elif kind == 2:
        data = good.replace(b"Content-Length: ", b"Content-Length: 99999999999999999999")
    elif kind == 3:
        data = good.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length")
    elif kind == 4:
        data = good.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\n" + b"A: b\r\n" * rng.randint(1, 20000))
    elif kind == 5:
        data = good.replace(b"Host:", b"Host :")
    else:
        data = b"GET /" + b"a" * rng.randint(1, 100000) + b" HTTP/1.1\r\n\r\n"
    with a.connect(timeout=1.0) as s:
        s.sendall(data)
        a.count((s.recv(4096)[9:12].decode("ascii", "replace") or "closed"))


def slot_actions(a, rng):
    action = rng.choice(["save", "save", "restore", "erase"])
    body = bodies.dump({"filename": f"attack-{rng.randrange(8)}"})
    a.send(f"/slots/{rng.randint(1, 12)}?action={action}", body)


# ---- the kinds ----

class Kind:
    """`act(attack, rng)` is repeated in `n` threads. `quick`: part of --quick."""

    def __init__(self, what, act, n=1, quick=False, keys=False):
        self.what, self.act, self.n, self.quick, self.keys = what, act, n, quick, keys


def sends(path, make_body):
    """An attack that sends one body again and again; it is made once."""
    made = []

    def act(a, _):
        with a.lock:
            if not made:
                made.append(make_body(a))
        a.send(path, made[0])
    return act


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KINDS = {
    "slow-headers": Kind("256 connections, a byte of a header every 5 s", slow_headers, quick=True),
    "idle": Kind("256 connections, idle after an answer", idle_connections),
    "silent": Kind("256 connections that send nothing", silent_connections, quick=True),
    "half-bodies": Kind("128 bodies of 4 MiB, the half sent", half_bodies),
    "wrong-keys": Kind("8 MiB bodies with a wrong key", wrong_keys, 8, keys=True),
    "half-closed": Kind("clients that close their side after the request", half_closed, 4),
    "malformed": Kind("malformed HTTP", malformed, 4, quick=True),
    "pipelined": Kind("50 requests at once on each connection", pipelined, 4),
    "disconnect": Kind("64 clients disconnect in mid-stream", disconnect, 64, quick=True),
    "unread-8": Kind("8 clients do not read their stream", lambda a, _: unread_streams(a, 8),
                     quick=True),
    "unread-32": Kind("32 clients do not read their stream", lambda a, _: unread_streams(a, 32)),
    "token-list": Kind("/detokenize, 8 MB of tokens",
                       sends("/detokenize", lambda a: bodies.token_list(8 * MIB - 100)), 4,
                       quick=True),
    "spaces": Kind("/tokenize, 1 MB of spaces",
                   sends("/tokenize", lambda a: bodies.text_of_spaces(MIB)), 4, quick=True),
    "word": Kind("/tokenize, a word of 1 MB",
                 sends("/tokenize", lambda a: bodies.one_word(MIB)), 4),
    "text": Kind("/tokenize, 8 MB of ordinary text",
                 sends("/tokenize", lambda a: bodies.ordinary_text(8 * MIB - 100)), 4),
    "control-tokens": Kind("/tokenize, 1 MB of control tokens",
                           sends("/tokenize", lambda a: bodies.text_of_control_tokens(MIB)), 4,
                           quick=True),
    "small-values": Kind("8 MB of small JSON values",
                         sends(CHAT, lambda a: bodies.small_values(8 * MIB - 200)), 4, quick=True),
    "deep-json": Kind("JSON nested 500,000 deep",
                      sends(TEXT, lambda a: bodies.deep_json(500_000)), 4),
    "type-list": Kind("a schema with 2,000 types and keys",
                      sends(CHAT, lambda a: bodies.type_list(2000)), 2),
    "properties": Kind("a schema with 900 optional properties",
                       sends(CHAT, lambda a: bodies.many_properties(900)), 4, quick=True),
    "repetitions": Kind("a schema with 300 arrays of up to 1,000",
                        sends(CHAT, lambda a: bodies.repetitions(300)), 4),
    "required": Kind("a schema with 300,000 required names",
                     sends(CHAT, lambda a: bodies.required_list(300_000, 500)), 4, quick=True),
    "alternatives": Kind("a schema of recursive alternatives, forced brackets",
                         sends(CHAT, lambda a: bodies.recursive_alternatives(
                             12, a.token_of_brackets)), 4, quick=True),
    "grammars": Kind("64 prompts x 16 answers with a large grammar",
                     sends(TEXT, lambda a: bodies.prompts_times_grammars(64, 16, 300)), 2,
                     quick=True),
    "logprobs": Kind("16 answers with 20 log-probabilities per token",
                     sends(CHAT, lambda a: bodies.logprobs_times_n()), 4),
    "logit-bias": Kind("4,096 logit biases",
                       sends(TEXT, lambda a: bodies.large_logit_bias()), 8),
    "stop-strings": Kind("stop strings of 4 MB together",
                         sends(CHAT, lambda a: bodies.stop_strings(4 * MIB)), 4),
    "slots": Kind("save, restore and erase in a loop", slot_actions, 4, quick=True),
}


def run_attackers(name, port, seconds, key):
    """The attackers' process: prints its counters twice a second."""
    kind, attack = KINDS[name], Attack(port, seconds, key)
    if name == "alternatives":
        reply = ask(port, "POST", "/tokenize", {"content": "[["}, key=key, source=ATTACKER)
        attack.token_of_brackets = reply.json()["tokens"][-1]

    def repeat(index):
        rng = random.Random(f"{name} {index}")
        while not attack.is_over():
            try:
                kind.act(attack, rng)
            except OSError as error:
                attack.count(type(error).__name__)
                attack.wait(0.05)

    threads = [threading.Thread(target=repeat, args=(i,), daemon=True) for i in range(kind.n)]
    for thread in threads:
        thread.start()
    while not attack.is_over():
        attack.wait(0.5)
        with attack.lock:
            print(json.dumps(attack.counts), flush=True)


# ---- honest clients ----

class HonestClients:
    """Short chats of equal length, one after the other in each of a few threads."""

    def __init__(self, server):
        self.server, self.over, self.lock = server, False, threading.Lock()
        self.done = []    # (start, seconds, good)
        self.pending = {} # start of each thread's request
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True)
                        for i in range(HONEST_CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _run(self, index):
        body = bodies.chat(f"Client {index} asks the same short thing each time. " * 2,
                           temperature=0, ignore_eos=True)
        while not self.over:
            start = time.monotonic()
            with self.lock:
                self.pending[index] = start
            reply = self.server.ask("POST", CHAT, body, HONEST_TIMEOUT_S)
            with self.lock:
                del self.pending[index]
                self.done.append((start, reply.seconds, reply.status == 200))
            time.sleep(HONEST_PAUSE_S)

    def figures(self, begin, end):
        """Of requests that began in this time. A request that is still waiting counts with its time
        so far, and as a failure if that is more than a second."""
        with self.lock:
            now = time.monotonic()
            done = [(s, t, good) for s, t, good in self.done if begin <= s < end]
            waiting = [(s, now - s, now - s < 1.0) for s in self.pending.values()
                       if begin <= s < end]
        seconds = [t for _, t, _ in done + waiting]
        return {"requests": len(seconds), "failed": sum(not good for _, _, good in done + waiting),
                "p50_ms": round(1e3 * quantile(seconds, 0.5), 2),
                "p99_ms": round(1e3 * quantile(seconds, 0.99), 2)}

    def finish(self):
        self.over = True
        for thread in self.threads:
            thread.join(HONEST_TIMEOUT_S + 5)


# ---- one kind ----

def judge(row, limits):
    """What was not held, as a list of words."""
    beside, wrong = row["beside"], []
    if row["died"]:
        wrong.append("the server died")
    if beside["failed"] > 0.01 * beside["requests"]:
        wrong.append("honest requests failed")
    if not beside["requests"] or beside["p99_ms"] > 1e3 * limits.max_p99:
        wrong.append("slow")
    if row["peak_mib"] > limits.max_peak:
        wrong.append("memory")
    if row["status"] != 0 or row["stop_s"] > limits.max_stop:
        wrong.append("stop")
    if row["stored"] < HONEST_CLIENTS:
        wrong.append("sessions lost")
    return wrong


def run_kind(name, a, alone_s, attack_s):
    kind = KINDS[name]
    keys = KEY + "\n" if kind.keys else None
    with Server(a.program, a.options, a.model, keys=keys) as server:
        honest = HonestClients(server)
        time.sleep(0.3)  # first prefill
        begin = time.monotonic()
        time.sleep(alone_s)
        alone = honest.figures(begin, time.monotonic())
        server.reset_peak()
        cpu, memory, start = server.cpu_seconds(), server.resident_mib(), time.monotonic()
        attackers = subprocess.Popen(
            [sys.executable, __file__, "--attackers", name, str(server.port),
             str(attack_s + a.max_stop + 5), server.key or ""], stdout=subprocess.PIPE)
        try:
            time.sleep(attack_s)
            beside = honest.figures(start, time.monotonic())
            row = {"kind": name, "what": kind.what, "alone": alone, "beside": beside,
                   "ratio_p50": round(beside["p50_ms"] / alone["p50_ms"], 2),
                   "ratio_p99": round(beside["p99_ms"] / alone["p99_ms"], 2),
                   "peak_mib": round(server.peak_mib()), "before_mib": round(memory),
                   "cpu_s": round(server.cpu_seconds() - cpu, 2), "died": not server.is_alive()}
            seconds, status = server.stop(timeout=a.max_stop + 2)
        finally:
            attackers.kill()
            printed = attackers.communicate()[0].decode().split("\n")
        row |= {"stop_s": round(seconds, 2), "status": status, "stored": len(server.stored()),
                "attack": json.loads(printed[-2]) if len(printed) > 1 else {}, "messages": server.messages()[-400:]}
        honest.finish()
    row["wrong"] = judge(row, a)
    return row


def print_row(row):
    alone, beside = row["alone"], row["beside"]
    print(f"{row['kind']:14} {alone['p50_ms']:7.1f} {alone['p99_ms']:7.1f} "
          f"{beside['p50_ms']:8.1f} {beside['p99_ms']:8.1f} {row['ratio_p99']:7.1f}x "
          f"{beside['failed']:5}/{beside['requests']:<6} {row['peak_mib']:6} {row['cpu_s']:6.1f} "
          f"{row['stop_s']:6.2f} {row['stored']:6}  {', '.join(row['wrong']) or 'ok'}", flush=True)


# ---- main ----

def read_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="the lowkey program")
    parser.add_argument("-m", "--model", help="GGUF file (default: a tiny random one)")
    parser.add_argument("-s", "--seconds", type=float, default=15, help="of each attack (default 15)")
    parser.add_argument("-k", "--kinds", help="names with commas between (default: all; see --list)")
    parser.add_argument("-q", "--quick", action="store_true", help="fewer kinds, 2 s each")
    parser.add_argument("-o", "--output", help="write the figures as JSON")
    parser.add_argument("--max-p99", type=float, default=2, help="seconds beside an attack (default 2)")
    parser.add_argument("--max-peak", type=float, default=1024, help="MiB of the server (default 1024)")
    parser.add_argument("--max-stop", type=float, default=10, help="seconds to stop (default 10)")
    parser.add_argument("options", nargs="*", help=f"of serve (default {' '.join(DEFAULT_OPTIONS)})")
    a = parser.parse_args(argv)
    a.options = a.options or DEFAULT_OPTIONS
    a.names = a.kinds.split(",") if a.kinds else \
        [name for name, kind in KINDS.items() if kind.quick or not a.quick]
    unknown = [name for name in a.names if name not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; see --list")
    return a


def main(argv):
    if argv[:1] == ["--list"]:
        for name, kind in KINDS.items():
            print(f"{name:14} {kind.what}")
        return 0
    if argv[:1] == ["--attackers"]:
        run_attackers(argv[1], int(argv[2]), float(argv[3]), argv[4] or None)
        return 0
    a = read_arguments(argv)
    alone_s, attack_s = (0.6, 2.0) if a.quick else (max(1.0, a.seconds / 3), a.seconds)
    print(f"{'':14} {'alone, ms':>15} {'beside, ms':>17} {'':8} {'':12} {'peak':>6} {'CPU':>6} "
          f"{'stop':>6}")
    print(f"{'attack':14} {'p50':>7} {'p99':>7} {'p50':>8} {'p99':>8} {'p99':>8} {'failed':>12} "
          f"{'MiB':>6} {'s':>6} {'s':>6} {'stored':>6}  verdict")
    rows = []
    for name in a.names:
        rows.append(run_kind(name, a, alone_s, attack_s))
        print_row(rows[-1])
    if a.output:
        with open(a.output, "w", encoding="utf-8") as file:
            json.dump({"program": a.program, "options": a.options, "seconds": attack_s,
                       "kinds": rows}, file, indent=1)
            file.write("\n")
    bad = [row["kind"] for row in rows if row["wrong"]]
    print(f"{len(rows) - len(bad)} of {len(rows)} kinds held" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
