#!/usr/bin/env python3
"""Starts and stops `lowkey serve` in many ways.

usage: stop_check.py PROGRAM MODEL

Prints one line per case that fails, and exits with status 1 if there is one.
"""
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

program, model = sys.argv[1:3]
work = tempfile.mkdtemp(prefix="lowkey-stop-")
failures, servers = [], []
PROMPT = "Once upon a time there was a small town at the river, and in it lived a miller with his " \
         "three sons, an old horse and a cat that nobody had ever seen asleep. "


def check(condition, text):
    if not condition:
        failures.append(text)
        print("FAILED:", text, flush=True)


class Server:
    """A server with a session directory of its own."""

    def __init__(self, *options, env=None, before=None, sessions=True):
        self.dir = tempfile.mkdtemp(dir=work)
        self.sessions = os.path.join(self.dir, "sessions")
        if sessions:
            options += ("--session-dir", self.sessions)
        self.process = subprocess.Popen(
            [program, "serve", "-m", model, "-t", "1", "--port", "0", "-c", "2k", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before,
            env={**os.environ, **(env or {})})
        servers.append(self.process)
        found = re.search(r":(\d+), cache", self.process.stdout.readline())
        self.port = int(found.group(1)) if found else 0

    def complete(self, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions",
                           json.dumps({"prompt": PROMPT, "max_tokens": 4, **more}))
        return connection.getresponse()

    def start_stream(self):
        """A long answer, of which the first bytes were received and no more are read."""
        body = json.dumps({"prompt": PROMPT, "max_tokens": 1900, "stream": True, "ignore_eos": True})
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
                  f"\r\n\r\n{body}".encode())
        s.recv(100)
        return s

    def wait(self, seconds=60):
        """Status and stderr."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait()

    def stored(self):
        path = os.path.join(self.sessions, "store")
        return [name for name in os.listdir(path) if name.endswith(".session")]


# ---- signals ----

def check_signals():
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        server = Server()
        server.complete().read()
        status, err = server.stop(number)
        check(status == 0, f"{number.name}: status {status}")
        check(len(server.stored()) == 1, f"{number.name}: no session was stored")
        check("1 session stored" in err and err.count("\n") == 1, f"{number.name}: says {err!r}")


def check_busy_stop():
    """In the middle of answers that are not read, and of requests, sessions are stored at once."""
    server = Server()
    streams = [server.start_stream() for _ in range(3)]
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{")
    server.process.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGHUP)  # a closed terminal sends more than one
    start = time.monotonic()
    while not server.stored() and time.monotonic() < start + 30:
        time.sleep(0.05)
    check(time.monotonic() < start + 4, "sessions are stored only after the connections ended")
    status, err = server.wait()
    check(status == 0 and len(server.stored()) > 0, f"busy: status {status}, {err!r}")
    check(time.monotonic() < start + 20, "a busy server does not stop")
    del streams


def check_second_signal():
    server = Server()
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{")
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(1)  # within the 5 seconds that it waits for the connection
    start = time.monotonic()
    status, _ = server.stop(signal.SIGINT)
    check(status == 128 + signal.SIGINT, f"second signal: status {status}")
    check(time.monotonic() < start + 2, "the second signal does not end the process")


def check_nohup():
    server = Server(before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    server.process.send_signal(signal.SIGHUP)
    check(server.complete().status == 200, "SIGHUP stops a server that was started with nohup")
    server.stop()


# ---- files ----

def limit_files(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def check_file_limit():
    server = Server(before=limit_files(20000))
    server.complete().read()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/slots/1?action=save", '{"filename": "z"}')
    reply = connection.getresponse()
    text = reply.read().decode()
    check(reply.status == 500 and "File too large" in text, f"file limit: {reply.status} {text}")
    check(server.complete().status == 200, "the server ends at a limit of file sizes")
    status, err = server.stop()
    check(status == 1 and "0 sessions stored, 1 lost" in err, f"file limit: {status} {err!r}")
    left = [name for _, _, names in os.walk(server.sessions) for name in names]
    check(not left, f"file limit: left {left}")


def check_file_limit_of_run():
    path = os.path.join(work, "run.session")
    done = subprocess.run([program, "run", "-m", model, "-t", "1", "-p", PROMPT, "-n", "2",
                           "--session", path], capture_output=True, text=True, check=False,
                          preexec_fn=limit_files(20000))
    check(done.returncode == 1 and done.stderr.count("\n") == 1 and
          "File too large" in done.stderr, f"run: {done.returncode} {done.stderr!r}")
    check(not [name for name in os.listdir(work) if name.startswith("run.session")],
          "run left a part of a session")


def check_lost_directory():
    server = Server()
    for first in "abc":
        server.complete(prompt=first + PROMPT).read()
    shutil.rmtree(server.sessions)
    status, err = server.stop()
    check(status == 1 and "3 lost" in err, f"lost directory: {status} {err!r}")


def check_leftovers():
    server = Server()
    server.stop()
    for name, age in ("old.new", 3600), ("young.new", 0), ("old", 3600):
        path = os.path.join(server.sessions, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write("x")
        os.utime(path, (time.time() - age, time.time() - age))
    again = Server("--session-dir", server.sessions, sessions=False)
    again.stop()
    left = sorted(name for name in os.listdir(server.sessions) if name != "store")
    check(left == ["old", "young.new"], f"leftovers: {left}")


# ---- descriptors, keys, the service manager ----

def limit_descriptors(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def check_descriptors():
    server = Server(before=limit_descriptors(40, 1024), sessions=False)
    with open(f"/proc/{server.process.pid}/limits", encoding="ascii") as file:
        limit = int(re.search(r"Max open files\s+(\d+)", file.read()).group(1))
    check(limit >= 256, f"the limit of open files is {limit}")
    status, err = server.stop()
    check(not err, f"descriptors: {err!r}")
    server = Server(before=limit_descriptors(150, 150), sessions=False)
    many = []
    for _ in range(300):
        many.append(socket.create_connection(("127.0.0.1", server.port)))
    check(server.complete().status == 200, "no place at a limit of 150 descriptors")
    status, err = server.stop()
    check(re.search("at most [0-9]+ connections", err), f"descriptors: {err!r}")
    server = Server(before=limit_descriptors(30, 30), sessions=False)
    status, err = server.wait()
    check(status == 1 and "limit of open files is 30" in err, f"30 descriptors: {status} {err!r}")


def check_keys():
    def run(text):
        path = os.path.join(work, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return Server("--api-key-file", path, sessions=False)

    def status(server, key):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/slots", headers={"Authorization": "Bearer " + key})
        return connection.getresponse().status

    server = run("\n  secret-1 \t\r\n   \n\t\nother-key-2")
    tried = [status(server, key) for key in ("secret-1", "other-key-2", "   ", "", "secret-1 x")]
    check(tried == [200, 200, 401, 401, 401], f"keys: {tried}")
    server.stop()
    for text, says in ("longenough\nshort\n", "line 2"), ("two words-12\n", "spaces"), ("\n \n", "no"):
        done, err = run(text).wait()
        check(done == 1 and says in err and err.count("\n") == 1, f"keys {text!r}: {err!r}")
        check("short" not in err.replace("too short", "") and "words" not in err, "shows a key")


def check_service_manager():
    for abstract in False, True:
        path = os.path.join(work, "notify")
        name = "\0lowkey-stop-" + str(os.getpid()) if abstract else path
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(name)
            manager.settimeout(20)
            server = Server(env={"NOTIFY_SOCKET": "@" + name[1:] if abstract else path,
                                 "WATCHDOG_USEC": "400000"}, sessions=False)
            got = [manager.recv(100) for _ in range(6)]
            check(b"READY=1" in got and got.count(b"WATCHDOG=1") >= 4, f"notify: {got}")
            os.kill(server.process.pid, signal.SIGSTOP)  # a server that is stuck
            manager.settimeout(0.2)
            try:
                while True:
                    manager.recv(100)
            except OSError:
                pass
            manager.settimeout(1.5)
            try:
                check(False, f"a stuck server sends {manager.recv(100)}")
            except OSError:
                pass
            os.kill(server.process.pid, signal.SIGCONT)
            manager.settimeout(20)
            check(manager.recv(100) == b"WATCHDOG=1", "no sign of life after a pause")
            server.stop()
            last = []
            manager.setblocking(False)
            try:
                while True:
                    last.append(manager.recv(100))
            except OSError:
                pass
            check(b"STOPPING=1" in last, f"notify at stop: {last}")


# ---- clients of other kinds ----

def check_half_closed_library_client():
    """Python's client parses the interim reply that a half-closed connection gets."""
    server = Server(sessions=False)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions",
                       json.dumps({"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}))
    connection.sock.shutdown(socket.SHUT_WR)
    reply = connection.getresponse()
    check(reply.status == 200 and json.loads(reply.read())["choices"], "half-closed http.client")
    server.stop()


for case in (check_signals, check_busy_stop, check_second_signal, check_nohup, check_file_limit,
             check_file_limit_of_run, check_lost_directory, check_leftovers, check_descriptors,
             check_keys, check_service_manager, check_half_closed_library_client):
    try:
        case()
    except Exception as error:  # the other cases still run
        check(False, f"{case.__name__}: {error!r}")
for process in servers:
    if process.poll() is None:
        process.kill()
shutil.rmtree(work)
sys.exit(1 if failures else 0)
