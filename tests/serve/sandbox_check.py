#!/usr/bin/env python3
"""Use a server in its sandbox.

usage: sandbox_check.py PROGRAM MODEL FOLDER
"""
import glob
import http.client
import json
import os
import re
import signal
import subprocess
import sys

program, model, folder = sys.argv[1:]
sessions = folder + "/sessions"
text = " ".join(str(i) for i in range(60))  # more than the 32 tokens that a stored session needs


def start():
    with open(folder + "/err", "w", encoding="utf-8") as err:
        server = subprocess.Popen(
            [program, "serve", "--sandbox", "-m", model, "-t", "2", "-c", "512", "--port", "0",
             "--session-dir", sessions], stdout=subprocess.PIPE, stderr=err, text=True)
    line = server.stdout.readline()
    match = re.search(r":(\d+), cache", line)
    if not match:
        with open(folder + "/err", encoding="utf-8") as err:
            sys.exit(f"FAILED: the server did not start: {line}{err.read()}")
    return server, int(match.group(1))


def request(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body and json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    data = json.loads(reply.read())
    connection.close()
    assert reply.status == 200, (path, reply.status, data)
    return data


def post(path, body):
    return request("POST", path, body)


def complete():
    return post("/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0})


def stop():
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, f"status {server.returncode} after SIGTERM"
    with open(folder + "/err", encoding="utf-8") as err:
        lines = err.read().splitlines()
    assert lines and lines[0].startswith("lowkey: sandbox: files of the session"), lines
    assert lines[1:] in ([], ["lowkey: stopped: 1 session stored"]), lines


def check_threads():
    """All threads have no_new_privs and, if the kernel has seccomp, both filters."""
    for status in glob.glob(f"/proc/{server.pid}/task/*/status"):
        with open(status, encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file.read().splitlines())
        assert fields["NoNewPrivs"].strip() == "1", status
        assert fields.get("Seccomp_filters", "2").strip() == "2", (status, fields)


server, port = start()
first = complete()
check_threads()
slot = request("GET", "/slots")["slots"][0]["id"]
saved = post(f"/slots/{slot}?action=save", {"filename": "trip"})
assert os.path.getsize(sessions + "/trip") == saved["n_written"]
post(f"/slots/{slot}?action=erase", {})
post(f"/slots/{slot}?action=restore", {"filename": "trip"})
again = complete()
assert again["choices"][0]["text"] == first["choices"][0]["text"], (first, again)
stop()
assert os.listdir(sessions + "/store"), "nothing was stored at the stop"

server, port = start()
stored = complete()
assert stored["choices"][0]["text"] == first["choices"][0]["text"], (first, stored)
assert stored["cache"]["prefix"] == "store", stored
stop()
print("a server in its sandbox answered, saved, restored and stored")
