#!/usr/bin/env python3
"""Kill a server at random moments, start it again, and see whether anything was lost.

usage: kill_serve.py PROGRAM [-n COUNT] [--seed SEED] [-o FILE]

A server with a session directory and a tiny random model serves conversations that continue, and
saves by name. At a random moment it gets SIGKILL, SIGTERM, SIGINT or SIGHUP, and is started again:

  always            every save that was acknowledged restores, with its number of tokens
                    every file of the store is a valid session
                    temporary files (.new) are gone after the next start, if they are old
                    the start prints no message
  TERM, INT, HUP    the exit status is 0, within 10 s
                    each conversation that waited for its client continues from the store

Exit status 1 if one of these failed. 12 moments take about 15 s, the default of 200 a few minutes.
"""
import argparse
import json
import os
import random
import signal
import sys
import threading
import time

from attack_bodies import dump
from serve_process import Server

OPTIONS = ["-t", "1", "--cache-limit", "256", "-c", "8192"]
CHAT = "/v1/chat/completions"
SIGNALS = [signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
MAX_STOP_S, MAX_TURNS, N_CLIENT, N_NAME = 10, 8, 4, 6
OLD_S = 120  # a temporary file of this age is removed


class Conversation:
    """One client's chat. Turns are only added when the answer was complete."""

    def __init__(self, index, rng):
        self.index, self.rng = index, rng
        self.in_flight = False
        self.begin()

    def begin(self):
        self.n_tok = 0  # that the server held after the last answer
        length = 400 if self.index == 0 else 20  # the first client's sessions are large
        words = " ".join(self.rng.choice("river stone light paper house cloud".split())
                         for _ in range(length))
        self.messages = [{"role": "user", "content": f"Client {self.index} says: {words}"}]

    def has_answer(self):
        return len(self.messages) > 1

    def body(self):
        return dump({"messages": self.messages, "max_tokens": 16, "temperature": 0,
                     "ignore_eos": True})

    def add(self, reply):
        self.n_tok = reply["usage"]["total_tokens"]
        self.messages.append({"role": "assistant",
                              "content": reply["choices"][0]["message"]["content"]})
        self.messages.append({"role": "user", "content": f"Go on, {self.rng.randrange(1000)}."})
        if len(self.messages) > 2 * MAX_TURNS:
            self.begin()


class Load:
    """Clients that talk and save until stop()."""

    def __init__(self, server, conversations, saved, seed):
        self.server, self.conversations, self.saved = server, conversations, saved
        self.gate, self.over = threading.Lock(), False
        self.threads = [threading.Thread(target=self._talk, args=(c,), daemon=True)
                        for c in conversations]
        self.threads.append(threading.Thread(target=self._save, args=(random.Random(seed),),
                                             daemon=True))
        for thread in self.threads:
            thread.start()

    def _talk(self, c):
        while not self.over:
            with self.gate:
                if self.over:
                    return
                c.in_flight = True
            reply = self.server.ask("POST", CHAT, c.body(), 30)
            with self.gate:
                if reply.status == 200:
                    c.add(reply.json())
                    c.in_flight = False
                elif self.over:
                    return  # stays in flight: the signal came first
            time.sleep(c.rng.random() * 0.04)

    def _save(self, rng):
        """Save idle sessions by name. saved[name]: tokens, or None while a save may be under way."""
        while not self.over:
            slots = self.server.ask("GET", "/slots").json().get("slots", [])
            idle = [slot for slot in slots if slot["state"] == "idle"]
            if idle:
                name = f"save-{rng.randrange(N_NAME)}"
                had = name in self.saved
                if had:
                    self.saved[name] = None
                reply = self.server.post(f"/slots/{rng.choice(idle)['id']}?action=save",
                                         {"filename": name})
                if reply.status == 200:
                    self.saved[name] = reply.json()["n_saved"]
                elif reply.status and had:
                    self.saved[name] = None  # refused: the old file stays
            time.sleep(rng.random() * 0.05)

    def send_signal(self, number):
        """Returns the conversations that waited for their client at that moment."""
        with self.gate:
            self.over = True
            idle = [c for c in self.conversations if not c.in_flight and c.has_answer()]
            seconds, status = self.server.stop(number, MAX_STOP_S)
        for thread in self.threads:
            thread.join(35)
        return idle, seconds, status


# ---- checks: each returns a list of what is wrong ----

def temporary_files(server):
    found = []
    for folder, _, names in os.walk(server.session_dir):
        found += [os.path.join(folder, name) for name in names if name.endswith(".new")]
    return found


def check_conversations(server, idle):
    wrong = []
    for c in idle:
        reply = server.ask("POST", CHAT, c.body(), 30)
        found = reply.json().get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens", 0)
        if found < c.n_tok - 1:  # the last token of an answer is not evaluated
            wrong.append(f"conversation {c.index}: {found} of {c.n_tok} tokens are left")
        if reply.status == 200:
            c.add(reply.json())
    return wrong


def check_saved(server, saved):
    wrong = []
    for name, n_tok in saved.items():
        reply = server.post("/slots/1000?action=restore", {"filename": name})
        restored = reply.json().get("n_restored")
        if reply.status != 200 or (n_tok is not None and restored != n_tok):
            wrong.append(f"{name} of {n_tok} tokens: status {reply.status}, {restored} restored "
                         f"({reply.error_code()})")
    return wrong


def check_store(server):
    """Restore every file of the store under another name."""
    wrong = []
    for name in server.stored():
        other = os.path.join(server.session_dir, "check")
        try:
            os.link(os.path.join(server.session_dir, "store", name), other)
        except FileNotFoundError:
            continue  # replaced by a newer one in the meantime
        reply = server.post("/slots/1001?action=restore", {"filename": "check"})
        os.unlink(other)
        if reply.status != 200:
            wrong.append(f"store/{name}: {reply.body[:200].decode('utf-8', 'replace')}")
    return wrong


def run_moment(server, conversations, saved, rng):
    """One signal at a random moment, and the checks after the next start."""
    number = rng.choice(SIGNALS)
    load = Load(server, conversations, saved, rng.random())
    time.sleep(rng.uniform(0.0, 0.8))
    idle, seconds, status = load.send_signal(number)
    wrong = []
    if number != signal.SIGKILL and status != 0:
        wrong.append(f"status {status} after {seconds:.1f} s")
    left = temporary_files(server)
    for path in left:
        os.utime(path, (time.time() - OLD_S, time.time() - OLD_S))
    n_line = server.messages().count("\n")
    server.start()
    for c in conversations:
        c.in_flight = False
    if number != signal.SIGKILL and status is not None:
        wrong += check_conversations(server, idle)
    for path in temporary_files(server):
        wrong.append(f"not removed: {os.path.basename(path)}")
        os.unlink(path)  # so that it counts once
    wrong += check_saved(server, saved) + check_store(server)
    wrong += [f"message: {line}" for line in server.messages().split("\n")[n_line:] if line]
    return {"signal": signal.Signals(number).name, "seconds": round(seconds, 2), "status": status,
            "temporary": len(left), "idle": len(idle), "saved": len(saved), "wrong": wrong}


# ---- main ----

def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="the lowkey program")
    parser.add_argument("-n", "--count", type=int, default=200, help="moments (default 200)")
    parser.add_argument("--seed", default="1", help="of the moments and signals (default 1)")
    parser.add_argument("-o", "--output", help="write all moments as JSON")
    a = parser.parse_args()
    rng = random.Random(a.seed)
    conversations = [Conversation(i, random.Random(f"{a.seed} {i}")) for i in range(N_CLIENT)]
    saved, rows = {}, []
    with Server(a.program, OPTIONS) as server:
        for index in range(a.count):
            rows.append(run_moment(server, conversations, saved, rng))
            row = rows[-1]
            if row["wrong"]:
                print(f"moment {index}, {row['signal']}: {'; '.join(row['wrong'])[:600]}", flush=True)
        n_stored = len(server.stored())
    print(f"{'signal':8} {'moments':>8} {'slowest stop, s':>16} {'temporary files':>16} {'failed':>7}")
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"):
        some = [row for row in rows if row["signal"] == name]
        print(f"{name:8} {len(some):8} {max((r['seconds'] for r in some), default=0):16.2f} "
              f"{sum(r['temporary'] for r in some):16} {sum(bool(r['wrong']) for r in some):7}")
    print(f"{len(saved)} names saved, {n_stored} sessions in the store at the end")
    if a.output:
        with open(a.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
