"""A server in a process of its own: started, asked, measured and ended by Python programs.

The server listens on 127.0.0.1 and has a limit on its address space, so an attack that succeeds
ends the server and not the machine.
"""
import http.client
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tiny_model

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import program_ranks  # pylint: disable=wrong-import-position

HOST = "127.0.0.1"
ADDRESS_SPACE = 8 << 30  # bytes that a server may map
START_S = 60             # time limit for the start
MIB = 1 << 20


class Reply:
    """An answer: status 0 if there was none, and then the error in `body`."""

    def __init__(self, status, body, seconds):
        self.status, self.body, self.seconds = status, body, seconds

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    def error_code(self):
        error = self.json().get("error") if isinstance(self.json(), dict) else None
        return error.get("code", "") if isinstance(error, dict) else ""


def is_sanitized(program):
    """Built with a sanitizer, which maps terabytes of address space?"""
    with open(program, "rb") as file:
        data = file.read()
    return b"__asan_init" in data or b"__tsan_init" in data


def ask(port, method, path, body=None, timeout=10.0, key=None, source=None):
    """One request on a new connection. A `body` that is not bytes is sent as JSON."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    start = time.monotonic()
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout,
                                            source_address=(source, 0) if source else None)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(), time.monotonic() - start)
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, repr(error).encode(), time.monotonic() - start)
    finally:
        connection.close()


def raw_request(path, body=b"", method="POST", headers=()):
    """The bytes of a request, for clients that send them in their own way."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json",
             f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """`lowkey serve` with `options`. `model`: a path; None: a tiny model that is written here.
    `directory`: where the model and the sessions are kept; None: a temporary one, removed by
    close(). `keys`: lines of a key file. Use as a context manager."""

    def __init__(self, program, options=(), model=None, directory=None, keys=None,
                 sessions=True, address_space=ADDRESS_SPACE):
        self.program, self.options, self.keys = program, list(options), keys
        self.sessions, self.address_space = sessions, address_space
        self.sanitized = is_sanitized(program)
        self.owns_directory = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="lowkey-serve-")
        self.model = model or os.path.join(self.directory, "tiny.gguf")
        if not os.path.exists(self.model):
            tiny_model.write_model(self.model)
        self.session_dir = os.path.join(self.directory, "sessions")
        self.process = None
        self.open_files = None  # limit of open files from the next start
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        command = program_ranks.command(self.program, "serve", "-m", self.model, "--port", "0",
                                        *self.options)
        if self.sessions:
            os.makedirs(self.session_dir, mode=0o700, exist_ok=True)
            command += ["--session-dir", self.session_dir]
        if self.keys is not None:
            path = os.path.join(self.directory, "keys")
            with open(path, "w", encoding="ascii") as file:
                os.chmod(path, 0o600)
                file.write(self.keys)
            command += ["--api-key-file", path]
        with open(os.path.join(self.directory, "stderr"), "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, preexec_fn=self._prepare_process,
                env=program_ranks.environment())
        self.pid = self.process.pid
        self.port = self._read_port()
        self.pid = program_ranks.rank_pid(self.process.pid, 0)
        self.key = next((line.strip() for line in (self.keys or "").split("\n") if line.strip()),
                        None)

    def _prepare_process(self):
        """In the new process. Signals that this one ignores (nohup) end the server as usual."""
        if not self.sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (self.address_space, self.address_space))
        if self.open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, self.open_files))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)

    def _read_port(self):
        line, end = b"", time.monotonic() + START_S
        while not line.endswith(b"\n") and time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                part = os.read(self.process.stdout.fileno(), 4096)
                if not part:
                    break
                line += part
        match = re.search(rb":(\d+), (?:cache|memory)", line)
        if not match:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"the server did not start: {self.messages()[-500:]}")
        return int(match.group(1))

    def messages(self):
        with open(os.path.join(self.directory, "stderr"), encoding="utf-8", errors="replace") as file:
            return file.read()

    # ---- requests ----

    def ask(self, method, path, body=None, timeout=10.0, source=None):
        return ask(self.port, method, path, body, timeout, self.key, source)

    def post(self, path, body, timeout=10.0):
        return self.ask("POST", path, body, timeout)

    def tokens(self, text):
        return self.post("/tokenize", {"content": text}).json().get("tokens", [])

    # ---- measurements; 0 after the process ended ----

    def _status(self, name):
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
                match = re.search(rf"^{name}:\s*(\d+) kB", file.read(), re.M)
        except OSError:
            match = None
        return int(match.group(1)) / 1024 if match else 0.0

    def resident_mib(self):
        return self._status("VmRSS")

    def peak_mib(self):
        return self._status("VmHWM")

    def mapped_mib(self):
        return self._status("VmSize")

    def reset_peak(self):
        try:
            with open(f"/proc/{self.pid}/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:
            pass

    def cpu_seconds(self):
        """User and system time of all threads, also of ended ones."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0

    def limit(self, kind, value):
        """Set a resource limit of the running process."""
        resource.prlimit(self.pid, kind, (value, value))

    def is_alive(self):
        return self.process.poll() is None

    def stored(self):
        """Names of the sessions that the server has stored on its own."""
        try:
            names = os.listdir(os.path.join(self.session_dir, "store"))
        except OSError:
            return []
        return sorted(name for name in names if name.endswith((".session", ".prefix")))

    # ---- the end ----

    def stop(self, number=signal.SIGTERM, timeout=20.0):
        """Send a signal, wait. Returns (seconds, exit status); the status is None if the process had
        to be killed, and negative if a signal ended it."""
        start = time.monotonic()
        if self.is_alive():
            os.kill(self.pid, number)
        try:
            status = program_ranks.exit_status(self.process.wait(timeout))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = None
        if self.process.stdout:
            self.process.stdout.close()
        return time.monotonic() - start, status

    def close(self):
        if self.process and self.is_alive():
            self.stop(timeout=5)  # a program that counts its coverage writes it at the end
        if self.owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")
