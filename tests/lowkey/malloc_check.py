"""Let allocations of the program fail, one run after another, and check how each run ends.

usage: malloc_check.py PROGRAM LIBFAILMALLOC MODELS [VERB...]

MODELS is a folder with the tiny models of the tests. For each command, the program's allocations are
counted once. Then the command runs again and again with the n-th allocation failing, or with all from the
n-th on. n is spread evenly over the count, and drawn from a fixed seed in addition. Every run must end
with status 0, or with status 1 and one line on stderr; if all allocations fail, several commands of a run
may each print one. A server must serve the next request, or end
with status 1 and a line. Signals, other statuses and hangs are failures.

Jansson 2.14 does not notice that it has lost a character of a string, for example the closing quote, and copies the
string past the end of its buffer. So signals are let pass if an allocation of Jansson's failed; they have a column.

LOWKEY_MALLOC_SAMPLES: runs per command (default 200)
"""
import collections
import concurrent.futures
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, SHIM, MODELS = (os.path.abspath(path) for path in sys.argv[1:4])
SAMPLES = int(os.environ.get("LOWKEY_MALLOC_SAMPLES", "200"))
# libgfortran's initializer makes the first allocations, before the program's own code runs. If all of them fail, it
# reports that by a function that fails again, until the stack is full. So `all` starts after them.
FORTRAN = 32
HANG = 60  # seconds after which a run counts as a hang
BPE, SPM = MODELS + "/qwen2-bpe.gguf", MODELS + "/llama-spm.gguf"
TEXT = "".join(f"The {i}. quick brown fox jumps over the lazy dog; then it sleeps.\n" for i in range(60))
GRAMMAR = 'root ::= ("a" | "b" [0-9]+)*\n'

# {} is an empty folder for the run, {text} the text, {grammar} the grammar. libllama corrupts the heap if an
# allocation fails in the constructor of llama_context (llama_batch_allocr). So eval has no 'llama.cpp:TYPE', and f32
# weights, with which it does not compare with llama.cpp's cache.
VERBS = {
    "run": "run -m BPE -t 2 -p hello -n 4 --ignore-eos --grammar-file {grammar} --session {}/session",
    "info": "info -m BPE",
    "plan": "plan -m BPE -t 2",
    "recipes": "recipes",
    "serve": "serve -m BPE -t 2 --port 0 -c 256 --parallel 2 --cache-limit 64 --session-dir {}",
    "compress": "compress --method palu --text {text} -m BPE -t 2 -o {}/basis.gguf -c 64 --tokens 512 "
                "--rank-search fisher --fisher-tokens 32 --fisher-ctx 16",
    "train": "train less -f {text} -m SPM -t 2 --budget 8 -c 64 --sequences 2 --epochs 1 --queries 4 "
             "--hidden 8 -o {}/less.gguf",
    "eval": "eval text --text {text} -m BPE -t 2 --weights f32 --kv best-4 --kv best-3 -c 64 --limit 1",
    "perplexity": "perplexity -m BPE -t 2 -f {text} -c 64 --chunks 1 -k best-3",
}

Run = collections.namedtuple("Run", "at mode start status problem err")
JANSSON = "jansson"  # the end of a run after a failed allocation of Jansson's


def environment(folder, at, mode, start, count=None):
    env = dict(os.environ, LD_PRELOAD=SHIM, FAILMALLOC_AT=str(at), FAILMALLOC_MODE=mode, FAILMALLOC_FROM=start,
               FAILMALLOC_JANSSON=folder + "/jansson-failed")
    if count:
        env["FAILMALLOC_COUNT"] = count
    return env


def command(verb, folder):
    line = VERBS[verb].format(folder, text=FILES + "/text", grammar=FILES + "/grammar")
    paths = {"BPE": BPE, "SPM": SPM}
    return [PROGRAM] + [paths.get(word, word) for word in line.split()]


# What the initializers of GnuTLS and of Fortran's library print. The program does not call these libraries itself.
FOREIGN = ("Error in GnuTLS initialization", "Operating system error: Cannot allocate", "Memory allocation failed",
           "Allocating cleared memory failed")


def judge(folder, status, err, mode, n_line=1):
    """What is wrong with the end of a run; None if nothing is."""
    lines = err.decode(errors="replace").splitlines()
    own = [line for line in lines if line.startswith("lowkey: ")]
    if status == 0:
        return None
    if status < 0 and os.path.exists(folder + "/jansson-failed"):
        return JANSSON
    if status < 0:
        return signal.Signals(-status).name
    if status != 1:
        return f"status {status}"
    if not own and not any(line.startswith(FOREIGN) for line in lines):
        return "no message"
    other = [line for line in lines if not line.startswith(("lowkey: ",) + FOREIGN)]
    if other:
        return f"other output: {other[0][:100]}"
    if n_line and mode == "once" and len(own) > n_line:
        return f"{len(own)} lines"
    return None


def run_once(verb, at, mode, start, count=None):
    with tempfile.TemporaryDirectory(dir=FILES) as folder:
        if verb == "serve":
            return run_server(folder, at, mode, start, count)
        try:
            done = subprocess.run(command(verb, folder), env=environment(folder, at, mode, start, count), timeout=HANG,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired as late:
            return Run(at, mode, start, None, "hang", late.stderr or b"")
        problem = judge(folder, done.returncode, done.stderr, mode)
        return Run(at, mode, start, done.returncode, problem, done.stderr)


# ---- the server -------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}}
COMPLETION = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
REQUESTS = [  # what every server is asked for: path and body
    ("/v1/completions", dict(COMPLETION, response_format={
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}})),
    ("/tokenize", {"content": TEXT}),
    ("/slots/1?action=save", {"filename": "saved"}),
    ("/slots/1?action=restore", {"filename": "saved"}),
    ("/v1/completions", dict(COMPLETION, stream=True)),
]


def post(port, path, body):
    """The status of the answer, None if the connection breaks."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG / 2)
    try:
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = link.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()


def serves(port):
    """True if the server completes a plain request. It may refuse a few while it recovers."""
    for _ in range(4):
        if post(port, "/v1/completions", COMPLETION) == 200:
            return True
    return False


def find_port(server):
    """Read the line that names the port; None if the server ends first."""
    for line in server.stdout:
        for word in line.decode(errors="replace").replace(",", " ").split():
            if word.startswith("http://") and word.rsplit(":", 1)[-1].strip("/").isdigit():
                return int(word.rsplit(":", 1)[-1].strip("/"))
    return None


def run_server(folder, at, mode, start, count):
    errors = open(folder + "/stderr", "w+b")
    server = subprocess.Popen(command("serve", folder), env=environment(folder, at, mode, start, count),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    problem = None
    try:
        port = find_port(server)
        if port:
            answers = [post(port, path, body) for path, body in REQUESTS]
            if os.environ.get("LOWKEY_MALLOC_VERBOSE"):
                print(at, mode, answers)
            if server.poll() is None and mode == "once" and not serves(port):
                time.sleep(0.2)  # it may be ending
                if server.poll() is None:
                    problem = "does not serve"
            if server.poll() is None:
                server.terminate()
        status = server.wait(timeout=HANG)
    except subprocess.TimeoutExpired:
        status, problem = None, "hang"
        server.kill()
        server.wait()
    finally:
        server.stdout.close()
    errors.seek(0)
    err = errors.read()
    errors.close()
    if status is not None:
        problem = judge(folder, status, err, mode, None) or problem
    return Run(at, mode, start, status, problem, err)


# ---- samples ----------------------------------------------------------------------------------------------


def count_allocations(verb, start):
    path = f"{FILES}/count-{verb}"
    done = run_once(verb, 0, "once", start, path)
    if done.problem or done.status != 0:
        sys.exit(f"FAILED: {verb} without failing allocations: status {done.status}, {done.err.decode()}")
    with open(path) as file:
        return int(file.read())


def samples(verb, n_alloc, n):
    """n pairs of an allocation and a mode: half of them spread evenly, half random, every fourth with `all`."""
    rng = random.Random(verb)
    even = [1 + (2 * i + 1) * n_alloc // n for i in range(n // 2)]
    chosen = even + [rng.randint(1, n_alloc) for _ in range(n - len(even))]
    rng.shuffle(chosen)
    return [(at, "all" if i % 4 == 3 and at > FORTRAN else "once") for i, at in enumerate(chosen)]


def torture(verb, pool):
    """The number of allocations of a command, and its runs."""
    start = "start"  # of the process: the initializers of libraries allocate, too
    n_alloc = count_allocations(verb, start)
    chosen = samples(verb, n_alloc, min(SAMPLES, n_alloc))
    return n_alloc, list(pool.map(lambda sample: run_once(verb, *sample, start), chosen))


def main():
    verbs = sys.argv[4:] or list(VERBS)
    failed = []
    print(f"{'command':12} {'allocations':>11} {'runs':>6} {'exit 0':>7} {'exit 1':>7} {'signals':>8} {'Jansson':>8} "
          f"{'other':>6}")
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for verb in verbs:
            n_alloc, runs = torture(verb, pool)
            bad = [run for run in runs if run.problem not in (None, JANSSON)]
            jansson = sum(1 for run in runs if run.problem == JANSSON)
            signals = sum(1 for run in bad if run.status is not None and run.status < 0)
            good = collections.Counter(run.status for run in runs if not run.problem)
            print(f"{verb:12} {n_alloc:11} {len(runs):6} {good[0]:7} {good[1]:7} {signals:8} {jansson:8} "
                  f"{len(bad) - signals:6}", flush=True)
            failed += [(verb, run) for run in bad]
    for verb, run in failed[:int(os.environ.get("LOWKEY_MALLOC_SHOW", "20"))]:
        last = run.err.decode(errors="replace").strip().splitlines()[-1:] or ["(nothing)"]
        print(f"FAILED: {verb}, allocation {run.at}, {run.mode}: {run.problem}; stderr ends with: {last[0][:200]}")
    return 1 if failed else 0


WORKERS = 2
with tempfile.TemporaryDirectory() as FILES:
    for name, text in ("text", TEXT), ("grammar", GRAMMAR):
        with open(f"{FILES}/{name}", "w") as file:
            file.write(text)
    sys.exit(main())
