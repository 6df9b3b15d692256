#!/usr/bin/env python3
"""Check a proxy.

usage: proxy_check.py events NAME PORT UPSTREAM_PORT CERTIFICATE    this program is the upstream
       proxy_check.py server NAME PORT UPSTREAM_PORT CERTIFICATE    `lowkey serve` is the upstream
"""
import http.client
import http.server
import json
import socket
import ssl
import sys
import threading
import time

what, name, port, upstream_port, certificate = sys.argv[1:]
key = {"Authorization": "Bearer a-key-for-tests"}
host = "llm.example.org"
seen = threading.Event()  # the client has received the first event


class Connection(http.client.HTTPSConnection):
    """To this machine, whatever the name."""
    def connect(self):
        raw = socket.create_connection(("127.0.0.1", int(port)), timeout=120)
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False  # the certificate has a common name only
        self.sock = context.wrap_socket(raw, server_hostname=host)


def send(method, path, body=None, headers=None):
    connection = Connection(host, timeout=120)
    connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
    return connection.getresponse()


def status(*request):
    reply = send(*request)
    reply.read()
    return reply.status


def wait_for_proxy():
    for _ in range(600):
        try:
            if status("GET", "/health") == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{name} does not answer")


# ---- events ----

class Upstream(http.server.BaseHTTPRequestHandler):
    """Sends one event, and the second only when the client has received the first."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        headers.update(self.headers)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"9\r\ndata: 1\n\n\r\n")
        self.wfile.flush()
        in_time.append(seen.wait(20))
        self.wfile.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    def log_message(self, *_):
        pass


headers, in_time = {}, []


def check_events():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(upstream_port)), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait_for_proxy()
    reply = send("POST", "/v1/chat/completions", b"{}", key)
    assert reply.status == 200, reply.status
    assert reply.readline() == b"data: 1\n"
    seen.set()
    assert b"data: 2\n" in reply.read()
    assert in_time == [True], "the first event was kept until the second came"
    assert headers["Host"] == host and headers["Authorization"] == key["Authorization"], headers


# ---- the server ----

def wait_for_busy(n):
    """Wait until the server is making n answers; asked without the proxy."""
    for _ in range(600):
        direct = http.client.HTTPConnection("127.0.0.1", int(upstream_port), timeout=120)
        direct.request("GET", "/slots", headers=key)
        slots = json.loads(direct.getresponse().read())["slots"]
        if sum(slot["state"] != "idle" for slot in slots) == n:
            return
        time.sleep(0.1)
    sys.exit(f"the server does not come to {n} answers: {slots}")


def check_stream():
    body = json.dumps({"messages": [{"role": "user", "content": "Count to a thousand."}],
                       "max_tokens": 1900, "ignore_eos": True, "stream": True})
    assert status("POST", "/v1/chat/completions", body) == 401
    reply = send("POST", "/v1/chat/completions", body, key)
    assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream")
    while True:  # the first event with text
        line = reply.readline()
        assert line, "the stream has no text"
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            break
    wait_for_busy(1)
    reply.close()  # a client that disconnects ends its answer, also through the proxy
    wait_for_busy(0)


def check_server():
    wait_for_proxy()
    check_stream()
    answer = send("POST", "/v1/completions", json.dumps({"prompt": "One, two,", "max_tokens": 4}), key)
    assert answer.status == 200 and json.loads(answer.read())["usage"]["completion_tokens"] > 0
    try:
        refused = status("POST", "/v1/completions", b"x" * (9 << 20), key)
        assert refused == 413 or (refused, name) == (502, "caddy"), refused  # 502: Caddy 2.6
    except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
        pass  # closed while the body was being sent
    many = json.dumps({"prompt": "a " * (3 << 20), "max_tokens": 1})
    assert status("POST", "/v1/completions", many, key) == 400  # by the server: too many tokens
    assert status("GET", "/metrics", None, key) == 200  # from this machine


if what == "events":
    check_events()
else:
    check_server()
print(f"{name}: {what}: as it should be")
