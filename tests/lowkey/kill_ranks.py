#!/usr/bin/env python3
"""Kill ranks at random moments, and see whether anything hangs, stays or is lost.

usage: LOWKEY_TEST_RANKS=N kill_ranks.py PROGRAM [-n COUNT] [--seed SEED]

`lowkey run` and `lowkey serve` work on N ranks (default 3) with a tiny random model. A random rank
gets SIGKILL while they prefill, decode or save. Each time:

  mpirun ends within 10 s with an error, which it reports in one line
  rank 0 says in one line which other rank has ended, unless the command was complete
  no rank is left
  a client of the server is not left waiting
  the session that was saved before is whole: one process loads it and continues

Exit status 1 if one of these failed. A moment takes about a second.
"""
import argparse
import filecmp
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "serve")]
os.environ.setdefault("LOWKEY_TEST_RANKS", "3")
import program_ranks  # pylint: disable=wrong-import-position
import tiny_model     # pylint: disable=wrong-import-position

PHASES = ("prefill", "decode", "save")
MAX_S, START_S = 10, 30
OPTIONS = ("-t", "1", "-c", "16k", "--kv", "best-4")


class Files:
    """A folder with the model, a long text, and a session that is kept."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.model, self.text = self.path("tiny.gguf"), self.path("text")
        self.sessions, self.kept = self.path("sessions"), self.path("sessions/kept")
        os.makedirs(self.sessions, mode=0o700)
        tiny_model.write_model(self.model)
        words = random.Random(1)
        with open(self.text, "w", encoding="ascii") as file:
            file.write(" ".join(words.choice(("river", "stone", "light")) for _ in range(1700)))
        subprocess.run(self.run_command("-f", self.text, "-n", "4", "--session", self.kept),
                       check=True, stdout=subprocess.DEVNULL)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_command(self, *arguments):
        return [self.program, "run", "-m", self.model, *OPTIONS, "--greedy", "--ignore-eos",
                *arguments]

    def kept_is_whole(self):
        """One process loads a copy of the kept session, and continues it."""
        copy = self.path("copy")
        shutil.copyfile(self.kept, copy)
        done = subprocess.run(self.run_command("-p", " and", "-n", "2", "--session", copy),
                              check=False, capture_output=True)
        return done.returncode == 0 and not done.stderr


class Outcome:
    def __init__(self, seconds, complete, named, wrong):
        self.seconds, self.complete, self.named, self.wrong = seconds, complete, named, wrong


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Ranks:
    """A command on several ranks."""

    def __init__(self, files, command):
        self.stderr = files.path("stderr")
        start = [part for part in program_ranks.command(*command) if part != "-q"]
        with open(self.stderr, "wb") as log:
            self.process = subprocess.Popen(start, stdin=subprocess.DEVNULL, stderr=log,
                                            stdout=subprocess.PIPE,
                                            env=program_ranks.environment())
        self.pids = [program_ranks.rank_pid(self.process.pid, rank)
                     for rank in range(program_ranks.RANKS)]

    def wait_for_watch(self):
        """Until rank 0 watches the others: MPI has started, and the command begins."""
        tasks, end = f"/proc/{self.pids[0]}/task", time.monotonic() + START_S
        while time.monotonic() < end:
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/comm", encoding="ascii") as file:
                    if file.read() == "rank-watch\n":
                        return
            time.sleep(0.005)
        raise RuntimeError("rank 0 does not watch the others")

    def kill(self, rank):
        try:
            os.kill(self.pids[rank], signal.SIGKILL)
        except ProcessLookupError:
            pass

    def what_is_wrong(self, rank, is_complete=lambda: False):
        """After a rank was killed. A command that was complete before that is right, too: its
        ranks no longer watch each other."""
        wrong, start = [], time.monotonic()
        try:
            self.process.communicate(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            wrong.append(f"mpirun goes on after {MAX_S} s")
            self.process.kill()
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
            self.process.communicate()
        seconds = time.monotonic() - start
        with open(self.stderr, encoding="utf-8", errors="replace") as file:
            text = file.read()
        ours = re.findall(r"^lowkey: .*$", text, re.M)
        expected = [f"lowkey: rank {rank} of {program_ranks.RANKS} has ended; start the run again "
                    "(saved sessions are whole)"] if rank > 0 else []
        named = re.findall(r"noticed that process rank (\d+) .*signal 9", text)
        # Sometimes mpirun only says that a process has failed, and not which one.
        reported = named == [str(rank)] or (not named and "returned\na non-zero exit code" in text)
        complete = is_complete() or (self.process.returncode == 0 and not text)
        if not complete and (ours != expected or not reported or not self.process.returncode):
            wrong.append(f"status {self.process.returncode}, stderr: {text[:400]}")
        end = time.monotonic() + 2  # killed processes take a moment to end
        while any(is_running(pid) for pid in self.pids) and time.monotonic() < end:
            time.sleep(0.02)
        wrong += [f"process {pid} is left" for pid in self.pids if is_running(pid)]
        return Outcome(seconds, complete, bool(named), wrong)


# ---- run ----

def kill_run(files, phase, rng):
    session = files.path("session")
    shutil.copyfile(files.kept, session)
    if phase == "save":  # a step, then the session is saved
        command = files.run_command("-p", " and", "-n", "1", "--session", session)
    else:
        command = files.run_command("-f", files.text, "-n", "5000")
    ranks, rank = Ranks(files, command), rng.randrange(program_ranks.RANKS)
    ranks.wait_for_watch()
    if phase == "decode":
        ranks.process.stdout.read(1)
    end = time.monotonic() + START_S
    while phase == "save" and ranks.process.poll() is None and time.monotonic() < end:
        if os.path.exists(session + ".new"):
            break
    else:
        time.sleep(rng.random() * (0.6 if phase == "prefill" else 0.2))
    ranks.kill(rank)
    result = ranks.what_is_wrong(rank, lambda: not filecmp.cmp(session, files.kept, shallow=False))
    if phase == "save":  # the old one, or the new one
        before, files.kept = files.kept, session
        if not files.kept_is_whole():
            result.wrong.append("the session that was being saved is damaged")
        files.kept = before
    return result


# ---- serve ----

def ask(port, path, body):
    """The reply's JSON, or None if the server is gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_S + START_S)
    try:
        connection.request("POST", path, json.dumps(body))
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def press(port, phase, files):
    """Keep the server busy with the phase, until it is gone."""
    with open(files.text, encoding="ascii") as file:
        text = file.read()
    number, reply = 0, ask(port, "/v1/completions", {"prompt": text[:9000], "max_tokens": 2})
    while reply is not None:
        number += 1
        if phase == "prefill":
            body = {"prompt": f"{number} {text}", "max_tokens": 1}
        else:
            body = {"prompt": f"{number}", "max_tokens": 3000, "ignore_eos": True}
        if phase == "save":
            reply = ask(port, "/slots/1?action=save", {"filename": f"name-{number % 3}"})
        else:
            reply = ask(port, "/v1/completions", body)


def kill_serve(files, phase, rng):
    ranks = Ranks(files, [files.program, "serve", "-m", files.model, *OPTIONS, "--port", "0",
                          "--session-dir", files.sessions])
    found = re.search(rb":(\d+), cache", ranks.process.stdout.readline())
    client = threading.Thread(target=press, args=(int(found.group(1)), phase, files), daemon=True)
    client.start()
    time.sleep(0.2 + rng.random())
    rank = rng.randrange(program_ranks.RANKS)
    ranks.kill(rank)
    result = ranks.what_is_wrong(rank)
    client.join(MAX_S)
    if client.is_alive():
        result.wrong.append("a client is left waiting")
    for name in os.listdir(files.sessions):
        if phase == "save" and name.startswith("name-") and not name.endswith(".new"):
            os.replace(os.path.join(files.sessions, name), files.path("named"))
            before, files.kept = files.kept, files.path("named")
            if not files.kept_is_whole():
                result.wrong.append(f"{name} is damaged")
            files.kept = before
    return result


# ---- main ----

def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="the lowkey program, built with MPI")
    parser.add_argument("-n", "--count", type=int, default=50, help="moments (default 50)")
    parser.add_argument("--seed", default="1", help="of the moments (default 1)")
    a = parser.parse_args()
    rng, outcomes = random.Random(a.seed), []
    with tempfile.TemporaryDirectory(prefix="lowkey-kill-") as folder:
        files = Files(a.program, folder)
        for index in range(a.count):
            kill, phase = (kill_run, kill_serve)[index % 2], PHASES[index // 2 % 3]
            outcome = kill(files, phase, rng)
            if not files.kept_is_whole():
                outcome.wrong.append("the session that was saved before is damaged")
            outcomes.append(outcome)
            if outcome.wrong:
                print(f"moment {index}, {kill.__name__} in {phase}: {'; '.join(outcome.wrong)}",
                      flush=True)
    n_failed = sum(bool(o.wrong) for o in outcomes)
    print(f"{a.count} moments on {program_ranks.RANKS} ranks: {n_failed} failed, slowest end "
          f"{max(o.seconds for o in outcomes):.1f} s, mpirun named the rank in "
          f"{sum(o.named for o in outcomes)}, {sum(o.complete for o in outcomes)} were complete")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
