"""Servers that run during a with statement, for the scripts that compare lowkey's with llama.cpp's."""
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOWKEY = os.path.join(TOP, "build", "lowkey")
READY_S = 300  # time limit for the start of a server


class Server:
    """The process of `command`, which gets the option --port, and its messages."""

    def __init__(self, label, command, port):
        self.label, self.command, self.address = label, command + ["--port", str(port)], f"http://127.0.0.1:{port}"

    def __enter__(self):
        self.log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.address + "/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.1)
        text = self.messages()[-2000:]
        self.__exit__()
        sys.exit(f"{self.label} did not start: {text}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def messages(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=60) as reply:
            return json.load(reply)

    def post(self, path, body):
        """The reply, to be used in a with statement: a stream or one JSON text."""
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=3600)


def llama_server(say):
    """Path of llama-server, built from the sources that lowkey is built with."""
    say("looking for llama-server (the first time it is built, which takes minutes)")
    done = subprocess.run([os.path.join(TOP, "scripts", "deps"), "--llama-server"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit("llama-server could not be built")
    return done.stdout.strip().splitlines()[-1]
