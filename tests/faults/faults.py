"""Let system calls on the program's files fail, one run after another, and check how each run ends.

usage: faults.py PROGRAM LIBFAILIO MODELS [CASE...]

MODELS is a folder with the tiny models of the tests. Each case has a folder of earlier files and a command. The
calls that the command makes on files below the folder are counted once, by operation. Then the command runs again
and again, each time from the same earlier files, with one call that fails (failio.c). Rules:

- The run ends with status 0, or with status 1 and one line on stderr that names the reason. A server answers each
  request, with an error if need be, and ends in one of these two ways.
- After status 0 the files are as after a run without a fault.
- After status 1 each file is the earlier one or the new one, whole. No temporary file remains.
- The next command, without a fault, finds the one or the other, and ends with status 0.

LOWKEY_CASE_STEP: try one fault in ten times this many (default 4); 1: all.
"""
import collections
import concurrent.futures
import errno
import http.client
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM, SHIM, MODELS = (os.path.realpath(path) for path in sys.argv[1:4])
CASE_STEP = int(os.environ.get("LOWKEY_CASE_STEP", "4"))
STEP = 1 if CASE_STEP == 1 else 10 * CASE_STEP
HANG = 60  # seconds after which a run counts as a hang
OPERATIONS = ("open", "close", "read", "write", "sync", "rename", "map", "access", "stat", "lock", "truncate", "chmod",
              "seek", "unlink", "folder")  # in the order of struct counts
ALWAYS = ":+"
# How a call may fail. 0: it transfers half of the bytes.
ERRORS = {
    "open": [errno.EACCES, errno.EIO, errno.EMFILE], "close": [errno.EIO], "read": [errno.EIO, errno.EINTR, 0],
    "write": [errno.ENOSPC, errno.EIO, errno.EINTR, 0, f"{errno.ENOSPC}{ALWAYS}"], "sync": [errno.EIO, errno.ENOSPC],
    "rename": [errno.EACCES, errno.EIO], "map": [errno.ENOMEM, errno.EACCES], "access": [errno.EACCES, errno.EIO],
    "stat": [errno.EIO, errno.EACCES], "lock": [errno.EIO, errno.ENOLCK], "truncate": [errno.EIO],
    "chmod": [errno.EPERM], "seek": [errno.EIO], "unlink": [errno.EACCES], "folder": [errno.EIO],
}
TEXT = "".join(f"The {i}. quick brown fox jumps over the lazy dog; then it sleeps.\n" for i in range(60))
BPE, SPM = MODELS + "/qwen2-bpe.gguf", MODELS + "/llama-spm.gguf"
RUN = "run -m BPE -t 1 -p hello -n 4 --greedy --ignore-eos"
CHAT = "chat -m BPE -t 1 --greedy -n 4 --session {}/c1"
COMPRESS = ("compress --method palu --text {}/text -m BPE -t 1 -o {}/basis.gguf -c 64 --tokens 512 --rank-search fisher "
            "--fisher-tokens 32 --fisher-ctx 16")
TUNE = "tune -m BPE -t 1 --text {}/text --chunk 320 --score 40 -c 4k --like best-3 -o {}/tuned.recipe"
LESS = ("train less -f {}/text -m SPM -t 1 --budget 8 -c 64 --sequences 4 --epochs 3 --queries 4 --hidden 8 "
        "-o {}/less.gguf")
LORA = "train lora -f {}/text -m BPE -t 1 --kv rot2 -c 32 --sequences 4 --epochs 4 --rank 1 -o {}/lora.gguf"
EVAL = "eval text --text {}/text -m BPE -t 1 --weights f32 --kv best-4 --kv best-3 -c 64 --limit 2 -o {}/results.jsonl"

SAME = "same"  # the command again, which must come to the files of a run without a fault
# name, commands that make the earlier files, the command, its input, and the command that reads what is there.
# A command that starts with "!" is interrupted when it has left the file with this end; "cut FILE" drops its last line.
Case = collections.namedtuple("Case", "name earlier command input again", defaults=("", None))
CASES = [
    Case("first session", [], RUN + " --session {}/s", again=RUN + " --session {}/s"),
    Case("session", [RUN + " --session {}/s"], RUN + " --session {}/s", again=RUN + " --session {}/s"),
    Case("first chat", [], CHAT, "one\n", again=CHAT),
    Case("chat", [(CHAT, "one\n")], CHAT, "two\n", again=CHAT),
    Case("cleared chat", [(CHAT, "one\n")], CHAT, "/clear\n/save {}/c1\n", again=CHAT),
    Case("model, mapped", ["copy BPE model.gguf"], "run -m {}/model.gguf -t 1 -p a -n 2"),
    Case("model, read", ["copy BPE model.gguf"], "run -m {}/model.gguf -t 1 -p a -n 2 --no-mmap --weights f32"),
    Case("compress", [COMPRESS], COMPRESS.replace("-c 64", "-c 48"),
         again=SAME),
    Case("sidecar", [COMPRESS], RUN + " --sidecar {}/basis.gguf --kv palu"),
    Case("tune", [TUNE.replace("tuned.recipe", "x.recipe --state {}/tuned.recipe.state").replace("best-3", "best-2")],
         TUNE, again=SAME),
    Case("stored recipe", ["store auto-4"], RUN + " --kv auto"),
    Case("train less", ["!.layer-0 " + LESS], LESS, again=SAME),
    Case("train lora", ["!.lora " + LORA], LORA, again=SAME),
    Case("export", [LORA], "export -m BPE --sidecar {}/lora.gguf -o {}/adapted.gguf", again=SAME),
    Case("eval", [EVAL, "cut results.jsonl"], EVAL, again=EVAL),
    Case("inputs", ["write prompt hello there", "write my.recipe sink 4: f16; body: rot4", 'write grammar root ::= "a"+'],
         "run -m BPE -t 1 -f {}/prompt -n 2 --kv {}/my.recipe --grammar-file {}/grammar"),
    Case("serve", ["serve"], "serve", again="serve"),
]

Fault = collections.namedtuple("Fault", "op at error")
Run = collections.namedtuple("Run", "status out err counts problem")


# ---- runs ----

def words_of(command, folder):
    paths = {"BPE": BPE, "SPM": SPM}
    return [PROGRAM] + [paths.get(word, word.replace("{}", folder)) for word in command.split(" ")]


def environment(folder, fault, counts):
    env = dict(os.environ, LOWKEY_TUNE="0", LOWKEY_CACHE=folder + "/cache")
    if counts:
        with open(counts, "wb") as file:
            file.write(bytes(8 * (len(OPERATIONS) + 1)))
        env.update(LD_PRELOAD=SHIM, FAILIO_FOLDER=folder, FAILIO_COUNTS=counts)
    if fault:
        env["FAILIO_FAIL"] = f"{fault.op}:{fault.at}:{fault.error}"
    return env


def read_counts(path):
    with open(path, "rb") as file:
        numbers = memoryview(file.read()).cast("Q").tolist()
    if numbers[-1] == 2 ** 64 - 1:
        print("no seccomp")
        sys.exit(77)
    return dict(zip(OPERATIONS + ("failed",), numbers))


def own_lines(err, folder):
    return err.decode(errors="replace").replace(folder, "{}").splitlines()


def run(command, folder, text="", fault=None, counts=None):
    if command == "serve":
        return run_server(folder, fault, counts)
    try:
        done = subprocess.run(words_of(command, folder), env=environment(folder, fault, counts), timeout=HANG,
                              input=text.replace("{}", folder).encode(), capture_output=True, check=False)
    except subprocess.TimeoutExpired as late:
        return Run(None, b"", own_lines(late.stderr or b"", folder), read_counts(counts), "hang")
    return Run(done.returncode, done.stdout, own_lines(done.stderr, folder), counts and read_counts(counts), None)


# ---- the server: a conversation, saved under a name and, at the end, by the server ----

def post(port, path, body):
    """The status of the answer and its JSON; None if the connection breaks or it is not JSON."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG / 2)
    try:
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        link.close()


FIRST = [  # makes the named session
    ("/v1/completions", {"prompt": TEXT[:60], "max_tokens": 4, "temperature": 0, "id_slot": 1}),
    ("/slots/1?action=save", {"filename": "named"}),
]
REQUESTS = [
    ("/slots/1?action=restore", {"filename": "named"}),
    ("/v1/completions", {"prompt": TEXT[:120], "max_tokens": 4, "temperature": 0, "id_slot": 1}),
    ("/slots/1?action=save", {"filename": "named"}),
    ("/slots/2?action=restore", {"filename": "named"}),
]


def run_server(folder, fault, counts):
    os.makedirs(folder + "/sessions", mode=0o700, exist_ok=True)
    command = words_of("serve -m BPE -t 1 --port 0 -c 256 --parallel 2 --session-dir {}/sessions", folder)
    problem, answers = None, []
    with tempfile.TemporaryFile() as errors:
        server = subprocess.Popen(command, env=environment(folder, fault, counts), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=errors)
        try:
            found = re.search(rb"http://[^:]+:(\d+)", server.stdout.readline())
            is_first = not os.path.exists(folder + "/sessions/named")
            for path, body in (FIRST if is_first else REQUESTS) if found else []:
                answers.append(post(int(found.group(1)), path, body))
                if answers[-1] is None:
                    problem = f"no answer to {path}"
                elif answers[-1][0] >= 400 and "error" not in answers[-1][1]:
                    problem = f"an answer of {path} has no reason"
            server.terminate()
            status = server.wait(timeout=HANG)
        except subprocess.TimeoutExpired:
            status, problem = None, "hang"
            server.kill()
            server.wait()
        server.stdout.close()
        errors.seek(0)
        err = own_lines(errors.read(), folder)
    said = json.dumps([answer and answer[0] for answer in answers]).encode()
    return Run(status, said, err, counts and read_counts(counts), problem)


# ---- files ----

def contents(folder):
    """{name: bytes} of the files below the folder, in which the folder's own path is replaced."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read().replace(folder.encode(), b"{}")
    return found


def cpu_seconds(pid):
    """Of the main thread, 0 after the process has ended."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0


def interrupt(path, words, folder):
    """Interrupt a command when it has done a share of its work, so that it leaves the file of unfinished work."""
    whole = 0
    for share in (1, 0.5, 0.6, 0.7, 0.4, 0.8, 0.3):
        process = subprocess.Popen(words, env=environment(folder, None, None), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None and (share == 1 or cpu_seconds(process.pid) < share * whole):
            whole = max(whole, cpu_seconds(process.pid)) if share == 1 else whole
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=HANG)
        if os.path.exists(path):
            return
        for name in os.listdir(folder):
            if name.startswith(os.path.basename(words[-1])):
                os.remove(f"{folder}/{name}")
    sys.exit(f"FAILED: no interrupted run left {os.path.basename(path)}")


def prepare(step, folder):
    if isinstance(step, tuple):
        done = run(step[0], folder, step[1])
    elif step.startswith("!"):
        suffix, command = step[1:].split(" ", 1)
        words = words_of(command, folder)
        return interrupt(words[-1] + suffix, words, folder)
    elif step.startswith("cut "):
        path = f"{folder}/{step[4:]}"
        with open(path, "rb") as file:
            lines = file.read().splitlines(True)
        with open(path, "wb") as file:
            return file.write(b"".join(lines[:-1]))
    elif step.startswith("copy "):
        return shutil.copyfile(BPE, f"{folder}/{step.split()[2]}")
    elif step.startswith("write "):
        _, name, text = step.split(" ", 2)
        with open(f"{folder}/{name}", "w", encoding="ascii") as file:
            return file.write(text + "\n")
    elif step.startswith("store "):
        identity = json.loads(run("info -m BPE --json", folder).out)["identity"]
        os.makedirs(folder + "/cache/recipes")
        with open(f"{folder}/cache/recipes/{identity}-{step[6:]}", "w", encoding="ascii") as file:
            return file.write("sink 4: f16\nbody: rot4\nwindow 32: f16\n")
    else:
        done = run(step, folder)
    if done.status or done.problem:
        sys.exit(f"FAILED: {step} without a fault: status {done.status}, {done.problem}, {done.err}")
    return None


# ---- a case ----

class Tester:
    """One case: the folder of earlier files, what a run without a fault makes of it, and runs with faults."""

    def __init__(self, case, work):
        self.case, self.work = case, work
        self.start = work + "/start"
        os.makedirs(self.start)
        with open(self.start + "/text", "w", encoding="ascii") as file:
            file.write(TEXT)
        for step in case.earlier:
            prepare(step, self.start)
        self.before = contents(self.start)
        self.folders = queue.SimpleQueue()
        for i in range(WORKERS):
            self.folders.put(f"{work}/{i}")
        clean = [self.attempt(None) for _ in range(2)]
        for done, _, after, again in clean:
            refused = case.command == "serve" and b"[200, 200, 200, 200]" not in (done.out, again.out)
            if done.status or done.problem or refused or again and again.status:
                sys.exit(f"FAILED: {case.name} without a fault: {done}, {again}")
        self.after = clean[0][2]
        self.steady = {name for name in self.after if self.after[name] == clean[1][2].get(name)}
        self.again_out = clean[0][3] and clean[0][3].out
        self.counts = clean[0][0].counts
        self.usual = set(clean[0][0].err)  # such as "a new conversation"

    def attempt(self, fault):
        """A run from the earlier files: the run, the next one, and the files after the first."""
        folder = self.folders.get()
        try:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.start, folder)
            counts = folder + ".counts"
            done = run(self.case.command, folder, self.case.input, fault, counts)
            after = contents(folder)
            if self.case.again != SAME:
                return done, fault, after, self.case.again and run(self.case.again, folder)
            again, at_end = run(self.case.command, folder, self.case.input), contents(folder)
            if fault and not again.status:
                other = [name for name in self.steady if at_end.get(name) != self.after[name]]
                again = again._replace(problem=other and f"another {other[0]}" or None)
            return done, fault, after, again
        finally:
            self.folders.put(folder)

    def faults(self):
        return [Fault(op, at, error) for op in OPERATIONS for at in range(1, self.counts[op] + 1) for error in ERRORS[op]]

    def judge(self, done, fault, after, again):
        """What is wrong with a run; None if nothing is."""
        if done.problem:
            return done.problem
        if done.status is None or done.status < 0:
            return "ended by " + signal.Signals(-done.status).name
        if done.status > 1:
            return f"status {done.status}"
        lines = [line for line in done.err if line not in self.usual]
        if done.status == 1 and not all(line.startswith("lowkey: ") for line in lines):
            return "other output"
        if done.status == 1 and len(lines) != 1 and self.case.command != "serve":
            return f"{len(lines)} lines"
        if any("Success" in line for line in lines):
            return "a line without a reason"
        return self.judge_files(done, fault, after) or (again and self.judge_again(again))

    def judge_files(self, done, fault, after):
        expected = [self.after] if done.status == 0 and self.case.command != "serve" else [self.before, self.after]
        for name in filter(lambda name: not STORED.search(name), sorted(set(after) | set().union(*expected))):
            known = [files.get(name) for files in expected]
            if name.endswith(PROGRESS):
                continue
            if name not in self.after and name not in self.before and fault.op != "unlink":
                return f"leaves {name}"
            if name not in self.steady and name in self.after:
                continue
            if after.get(name) not in known:
                return f"{'success' if done.status == 0 else 'failure'} with another {name}"
        return None

    def judge_again(self, again):
        if again.status or again.problem:
            return f"the next command: status {again.status}: {again.problem}: {again.err[-1:]}"
        if self.case.command == "serve" and again.out != self.again_out:  # statuses of its answers
            return f"the next server answered {again.out}, not {self.again_out}"
        return None


STORED = re.compile(r"/store/[0-9a-f]{16}\.session$")  # a random name; the next server finds it
# What a training or a tuning has done so far: the next run goes on with it.
PROGRESS = (".state", ".lora", ".layer-0", ".layer-1", ".examples", ".stats", ".jsonl")


def main():
    names = sys.argv[4:]
    failed, total = [], collections.Counter()
    print(f"{'case':15}" + "".join(f"{op:>9}" for op in OPERATIONS) + "    runs exit 0 exit 1  failed")
    for case in CASES:
        if names and case.name not in names:
            continue
        with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            tester = Tester(case, os.path.realpath(work))
            chosen = tester.faults()[OFFSET % STEP::STEP]
            runs = list(pool.map(tester.attempt, chosen))
            problems = [(fault, tester.judge(*result), result[0]) for fault, result in zip(chosen, runs)]
        bad = [problem for problem in problems if problem[1]]
        fired = collections.Counter(fault.op for fault, result in zip(chosen, runs) if result[0].counts["failed"])
        total += fired
        status = collections.Counter(result[0].status for result in runs)
        print(f"{case.name:15}" + "".join(f"{fired[op]:9}" for op in OPERATIONS) +
              f"{len(runs):8}{status[0]:7}{status[1]:7}{len(bad):8}", flush=True)
        failed += [(case.name, *problem) for problem in bad]
    print(f"{'all':15}" + "".join(f"{total[op]:9}" for op in OPERATIONS) + f"{sum(total.values()):8}{len(failed):22}")
    for name, fault, problem, done in failed[:int(os.environ.get("LOWKEY_FAULTS_SHOW", "30"))]:
        last = done.err[-1:] or ["(nothing)"]
        print(f"FAILED: {name}, {fault.op} {fault.at}, {fault.error}: {problem}; stderr ends with: {last[0][:200]}")
    return 1 if failed else 0


WORKERS = 2
OFFSET = 7  # of the sample
sys.exit(main())
