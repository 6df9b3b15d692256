#!/usr/bin/env python3
"""Random requests, each with its own memory and CPU time measured.

usage: random_requests.py PROGRAM [-n COUNT] [-i INDEX] [--seed SEED] [-o FILE]

A server with a tiny random model gets one request after the other. It fails if for one of them

  the peak of resident memory grows by more than 16 MiB + 8 x the size of the body,
  a refusal (4xx or 503) costs more than 0.5 s of CPU time,
  the status is 500, there is no answer within 30 s, or the server dies.

A request is a function of the seed and its index: `-i INDEX` sends only that one, and prints it.
Exit status 1 if one failed.
"""
import argparse
import json
import random
import sys

from attack_bodies import dump
from random_bodies import random_request
from serve_process import MIB, Server

OPTIONS = ["-t", "1", "--cache-limit", "32", "-c", "4096", "--allow-kv", "f16"]
FREE_MIB, MIB_PER_MIB, REFUSAL_S, ANSWER_S = 16, 8, 0.5, 30
N_WARM_UP = 40


def make_request(seed, index):
    return random_request(random.Random(f"{seed}/{index}"))


def measure(server, index, path, body):
    server.reset_peak()
    memory, cpu = server.resident_mib(), server.cpu_seconds()
    reply = server.post(path, body, ANSWER_S)
    row = {"index": index, "path": path, "bytes": len(body), "status": reply.status,
           "mib": round(server.peak_mib() - memory, 1), "cpu_s": round(server.cpu_seconds() - cpu, 2),
           "seconds": round(reply.seconds, 2), "code": reply.error_code(),
           "answer": reply.body[:200].decode("utf-8", "replace")}
    row["over_mib"] = round(row["mib"] - FREE_MIB - MIB_PER_MIB * len(body) / MIB, 1)
    return row


def judge(server, row):
    """What is wrong with the answer, or None."""
    if not server.is_alive():
        return f"the server died: status {server.process.returncode}"
    if row["status"] == 0:
        return f"no answer: {row['answer']}"
    if row["status"] == 500:
        return f"status 500: {row['answer']}"
    if row["over_mib"] > 0:
        return f"{row['mib']} MiB, {row['over_mib']} too many"
    if row["status"] >= 400 and row["cpu_s"] > REFUSAL_S:
        return f"{row['cpu_s']} s of CPU for a refusal"
    return None


def describe(row):
    return (f"{row['index']:6} {row['path'][:24]:24} {row['bytes']:9} bytes, status {row['status']} "
            f"{row['code']:24} {row['mib']:7.1f} MiB {row['cpu_s']:6.2f} s")


def run(server, a):
    """Send all requests. Returns (rows, failures); a server that died is started again."""
    rows, failures = [], []
    many = dump({"prompt": [f"prompt {i} " * 20 for i in range(64)], "max_tokens": 8})
    for index in range(N_WARM_UP):  # fills caches and arenas
        server.post(*(("/v1/completions", many) if index % 10 == 0 else
                      make_request("warm-up", index)), ANSWER_S)
        if not server.is_alive():
            server.start()
    for index in a.indices:
        path, body = make_request(a.seed, index)
        if len(a.indices) == 1:
            print(f"POST {path}\n{body[:3000].decode('utf-8', 'replace')}")
        row = measure(server, index, path, body)
        rows.append(row)
        row["wrong"] = judge(server, row)
        if row["wrong"]:
            failures.append(row)
            print(f"{describe(row)}\n       {row['wrong']}", flush=True)
        if not server.is_alive() or row["status"] == 0:
            server.stop(9)
            server.start()
    return rows, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="the lowkey program")
    parser.add_argument("-n", "--count", type=int, default=2000, help="requests (default 2000)")
    parser.add_argument("-i", "--index", type=int, help="send only this request")
    parser.add_argument("--seed", default="1", help="another seed gives other requests (default 1)")
    parser.add_argument("-o", "--output", help="write all figures as JSON")
    a = parser.parse_args()
    a.indices = [a.index] if a.index is not None else list(range(a.count))
    with Server(a.program, OPTIONS) as server:
        rows, failures = run(server, a)
        seconds, status = server.stop()
    statuses = {}
    for row in rows:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    print(f"{len(rows)} requests with seed {a.seed}, {sum(row['bytes'] for row in rows) / MIB:.0f} MiB; "
          f"statuses {dict(sorted(statuses.items()))}")
    for name, key in (("most memory over its share", "over_mib"), ("most CPU time", "cpu_s")):
        print(f"{name}:")
        for row in sorted(rows, key=lambda row: -row[key])[:5]:
            print("  " + describe(row))
    print(f"{len(failures)} failed; stopped in {seconds:.2f} s with status {status}")
    if a.output:
        with open(a.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
    return 1 if failures or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
