"""Whole models, and what fits in a card's memory, for scripts/bench-gpu: reads jobs, one per line, and answers each with a line
of JSON.

usage: python3 models.py FOLDER [--emulate]

    step heads=32/8 d=128 batch=8 rows=32768 queries=1 kv=best-3 shape=llama3-8b     tokens per second of all sequences
    step ... llama=q8_0 shape=llama3-8b              the same of libllama, with that cache type
    step ... kv=f16 batch=fit gib=74.5               with as many sequences as fit, at most MOST_SEQUENCES
    step ... kv=palu prefill=1 layers=1              tokens per second of a prompt, and seconds to the first token
    step ... llama=f16 prefill=1 shape=llama3-8b     the same of libllama
    step ... kv=h2o generate=1                       seconds for prompts of `rows` tokens and as many new ones, from the speed of the
                                                     prompt and of steps at 1.5 times `rows`
    fit heads=32/8 d=128 batch=8 rows=0 queries=1 shape=llama3-8b kv=best-3 gib=22.35    the longest context, in tokens
    same-text model=SmolLM2                          real models, f32 weights: text, KL and saved sessions on CPU and card

seconds=N in a job is what it may take. With batches=1,8,32 one process measures all of these batches, and later jobs that ask
for another of them are answered at once.

Weights and rows are on the card, with --emulate the rows on the emulated one, and models are tiny. Models of `step` have random
weights (bench/random_model, q4_K), and are made where they are used. The memory of a cache is what `lowkey plan` says for two
layers of the shape, times the layers; llama.cpp's is its cells. RESERVED is left for the card's context, activations and scratch.
Real models are FOLDER/models/*.gguf or in ~/.cache/lowkey/models.
"""
import glob
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GIB = 2**30
RESERVED = GIB  # of a card, next to weights and rows
LAYERS = {"llama3-8b": 32, "llama2-7b": 32, "llama2-13b": 40, "tiny": 2}
KV_HEADS = {"llama3-8b": 8, "llama2-7b": 32, "llama2-13b": 40}
HEADS = {"llama3-8b": 32, "llama2-7b": 32, "llama2-13b": 40, "tiny": 8}
LLAMA_BITS = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}  # of ggml's blocks
D_HEAD = 128
SHORT = 2           # layers of the file that memory is planned with
MOST_SEQUENCES = 64  # of bench/batch
STEPS = 8           # that are timed
TEXT = "The old house at the end of the street had been empty for years. One day in spring"


class Skip(Exception):
    """Why a job gives no figure."""


def libraries():
    """Folders of CUDA's libraries (cuBLAS), which PyTorch's wheels bring."""
    return glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib"))


class Models:
    def __init__(self, folder, emulate):
        self.folder, self.emulate = folder, emulate
        self.build = os.environ.get("LOWKEY_BUILD_DIR", os.path.join(TOP, "build"))
        self.known = {}  # answers of earlier processes: {(kind, cache, file, rows): {sequences: tokens per second}}
        self.end = 0
        modules = os.path.join(self.build, "modules") if emulate else os.path.join(folder, "programs")
        path = os.pathsep.join(libraries() + [p for p in (os.environ.get("LD_LIBRARY_PATH"),) if p])
        self.environment = {"LOWKEY_MODULES": modules, **os.environ, "LD_LIBRARY_PATH": path}
        self.devices = ["--cache-device", "emulated"] if emulate else ["--device", "cuda0", "--cache-device", "cuda0"]

    def program(self, name):
        """A program, from the folder that was carried along or from the build."""
        for path in (os.path.join(self.folder, "programs", os.path.basename(name)), os.path.join(self.build, name)):
            if os.access(path, os.X_OK):
                return path
        raise Skip(f"{name} is not built")

    def try_run(self, *command):
        """(what it printed, why it failed or '')"""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment) as process:
            try:
                out, err = process.communicate(timeout=max(0.1, self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                return process.communicate()[0], "out of time"
        why = (err.strip() or f"status {process.returncode}").split("\n")[-1][:200] if process.returncode else ""
        return out, why

    def run(self, *command):
        out, why = self.try_run(*command)
        if why:
            raise Skip(why)
        return out

    def lowkey(self, *words):
        return self.run(self.program("lowkey"), *words)

    def model(self, shape, layers, kv_heads):
        """The path of a file with random weights, which is written once."""
        if shape not in LAYERS:
            raise Skip(f"no random model of {shape}'s shape")
        path = os.path.join(self.folder, "objects", f"{shape}-{layers}-{kv_heads}.gguf")
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            begin = time.monotonic()
            self.run(self.program("bench/random_model"), shape, "q4_K", path + ".part", str(layers), str(kv_heads))
            os.rename(path + ".part", path)
            print(f"wrote {path}: {os.path.getsize(path) / 1e9:.2f} GB in {time.monotonic() - begin:.1f} s", file=sys.stderr)
        return path

    def recipe(self, job, path):
        """The recipe, in which _ stands for a space, and the options that it needs: a sidecar with random bases and networks."""
        kv = job["kv"].replace("_", " ")
        if not any(word in kv for word in ("palu", "tale", "latent", "less")):
            return kv, []
        sidecar = path + ".lk.gguf"
        if not os.path.exists(sidecar):
            shape, layers, kv_heads = os.path.basename(path)[:-len(".gguf")].rsplit("-", 2)
            made = [path + ".again", layers, kv_heads, sidecar + ".part"]
            self.run(self.program("bench/random_model"), shape, "q4_K", *made)
            os.rename(sidecar + ".part", sidecar)
            os.remove(path + ".again")
        return kv, ["--sidecar", sidecar]

    def model_of(self, job):
        """The file of a job's shape, and its shape."""
        heads, kv_heads = (int(n) for n in job["heads"].split("/"))
        if self.emulate:  # with the same group
            return self.model("tiny", LAYERS["tiny"], max(1, HEADS["tiny"] * kv_heads // heads)), "tiny"
        shape = job.get("shape") or next((s for s in KV_HEADS if KV_HEADS[s] == kv_heads and HEADS[s] == heads),
                                         "llama2-13b" if heads == 40 else "llama2-7b")
        return self.model(shape, int(job.get("layers", LAYERS.get(shape, 0))), kv_heads), shape

    # ---- memory ----

    def plan(self, path, job, rows):
        """Bytes of the cache at that length, for the layers of the file."""
        kv, sidecar = self.recipe(job, path)
        found = json.loads(self.lowkey("plan", "-m", path, *sidecar, "--kv", kv, "-c", str(rows), "--json"))["plans"][0]
        return found["cache_bytes"]

    def left(self, job, shape):
        """Bytes of a card that rows may take: without the weights and RESERVED."""
        path = self.model(shape, SHORT, KV_HEADS[shape])
        one = self.model(shape, SHORT // 2, KV_HEADS[shape])
        per_layer = (os.path.getsize(path) - os.path.getsize(one)) / (SHORT - SHORT // 2)
        weights = os.path.getsize(one) + per_layer * (LAYERS[shape] - SHORT // 2)
        return path, float(job.get("gib", 74.5)) * GIB - RESERVED - weights

    def fit(self, job):
        """The longest context that fits `batch` times: weights, rows and RESERVED in `gib`."""
        shape, batch = job["shape"], int(job.get("batch", 1))
        path, left = self.left(job, shape)
        if "llama" in job:
            row = 2 * LAYERS[shape] * KV_HEADS[shape] * D_HEAD * LLAMA_BITS[job["llama"]] / 8
            return {"rate": int(left / batch / row) // 256 * 256}
        # Linear from 64k on: levels of constant size, and others that are shares of the rows.
        low, high = 64 * 1024, 128 * 1024
        a, b = (self.plan(path, job, n) * LAYERS[shape] / SHORT for n in (low, high))
        slope = (b - a) / (high - low)
        return {"rate": int(low + (left / batch - a) / slope) // 256 * 256}

    # ---- speed ----

    def batches(self, job, shape):
        """(sequences that are asked for, all that one process measures)"""
        if job["batch"] == "fit":
            if self.emulate:
                return 2, [2]
            path, left = self.left(job, shape)
            n = int(left / (self.plan(path, job, int(job["rows"])) * LAYERS[shape] / SHORT))
            n = min(max(n, 1), MOST_SEQUENCES)
            return n, [n]
        n = int(job["batch"])
        return n, [n] if self.emulate else sorted({n, *(int(m) for m in job.get("batches", job["batch"]).split(","))})

    def speeds(self, job, path, rows, batches):
        """{sequences: tokens per second of all of them}, and why some are missing."""
        kind, cache = ("llama", job["llama"]) if "llama" in job else ("lowkey", job["kv"])
        key = (kind, cache, path, rows, *batches)
        if key not in self.known:
            if kind == "llama":
                threads = str(os.cpu_count() or 1)
                command = [self.program("bench/llama_depth"), path, str(rows), cache, cache, "on", threads, "0", str(STEPS), "3"]
            else:
                kv, sidecar = self.recipe(job, path)
                command = [self.program("bench/batch"), "--lines", "json", *sidecar, *self.devices, path, kv, str(rows), str(STEPS)]
            out, why = self.try_run(*command, *(str(n) for n in batches))
            found = {}
            for line in out.splitlines():
                line = json.loads(line) if line.endswith("}") else {}
                if "samples_ts" in line:
                    found[line["n"]] = statistics.median(line["samples_ts"])
                elif "tps" in line:
                    found[line["n"]] = line["tps"]
            self.known[key] = found, why
        return self.known[key]

    def prefill(self, job, path, rows):
        if "llama" in job:
            threads = str(os.cpu_count() or 1)
            out = self.run(self.program("bench/llama_depth"), path, "0", job["llama"], job["llama"], "on", threads, str(rows), "0", "1")
            return statistics.median(json.loads(out)[0]["samples_ts"])
        kv, sidecar = self.recipe(job, path)
        out = self.lowkey("bench", "-m", path, *sidecar, *self.devices, "--kv", kv, "-d", "0", "-p", str(rows), "-n", "0", "-r", "1", "--json")
        return json.loads(out)["results"][0]["prefill_tps"]

    def step(self, job):
        path, shape = self.model_of(job)
        rows = int(job["rows"])
        if "prefill" in job:
            rate = self.prefill(job, path, rows)
            return {"rate": rate, "text": f"{rate:,.0f} ({rows / rate:.3f} s)"} if not self.emulate else {"text": "ran"}
        n, batches = self.batches(job, shape)
        generates = "generate" in job
        found, why = self.speeds(job, path, rows + rows // 2 if generates else rows, batches)
        if n not in found:
            raise Skip(why or "no answer")
        if self.emulate:
            return {"text": "ran"}
        if not generates:
            return {"rate": found[n], "text": f"{found[n]:,.1f} ({n} sequences)"} if job["batch"] == "fit" else {"rate": found[n]}
        seconds = n * rows / self.prefill(job, path, rows) + n * rows / found[n]
        return {"rate": n * rows / seconds, "text": f"{seconds:.1f} s, {n * rows / seconds:,.1f} tokens/s"}

    # ---- the same text ----

    def text_of(self, path, kv, n, devices, *more):
        words = ["run", "-m", path, "--weights", "f32", "--greedy", "--ignore-eos", "-c", "2048", "--kv", kv, "-n", str(n), *devices, *more]
        return json.loads(self.lowkey(*words, "--json"))["text"]

    def divergence(self, path, devices):
        """(KL of best-3 to the full cache, its error), of a short text."""
        data = os.environ.get("LOWKEY_DATA", os.path.join(TOP, "data"))
        texts = [os.path.join(data, "wikitext2", "valid.txt"), os.path.join(TOP, "README.md")]
        text = next(path for path in texts if os.path.exists(path))
        size = ["-c", "192", "--score", "8", "--step", "8"] if self.emulate else ["-c", "1024", "--step", "8"]
        out = self.lowkey("perplexity", "-m", path, "--weights", "f32", "-f", text, "--kv", "best-3", "--chunks", "1", *size, *devices, "--json")
        found = json.loads(out)["results"][-1]
        return found["kl_mean"], found["kl_stderr"] or 0

    def same_text(self, job):
        folders = (os.path.join(self.folder, "models"), os.path.join(os.environ.get("LOWKEY_CACHE", os.path.expanduser("~/.cache/lowkey")), "models"))
        paths = [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, job["model"] + "*.gguf")))]
        if not paths:
            raise Skip(f"{job['model']}*.gguf is neither in {folders[0]} nor in {folders[1]}")
        path, n = paths[0], 8 if self.emulate else 200
        for kv in ("f16", "best-3"):
            texts = [self.text_of(path, kv, n, devices, "-p", TEXT) for devices in ([], self.devices)]
            if texts[0] != texts[1]:
                return {"failed": f"{kv}: other text from byte {len(os.path.commonprefix(texts))} of {len(texts[0])} on"}
        whole = self.text_of(path, "best-3", n, [], "-p", TEXT)
        for first, second in ((self.devices, []), ([], self.devices)):
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "session")
                half = self.text_of(path, "best-3", n // 2, first, "-p", TEXT, "--session", file)
                half += self.text_of(path, "best-3", n - n // 2, second, "-p", "", "--session", file)
            if half != whole:
                return {"failed": f"a session saved on {first[-1] if first else 'the CPU'} continues with other text"}
        kl = [self.divergence(path, devices) for devices in ([], self.devices)]
        text = f"{n} tokens are the same; sessions continue; KL of best-3 {kl[0][0]:.5f} on the CPU, {kl[1][0]:.5f} on the card"
        return {"text": text} if abs(kl[0][0] - kl[1][0]) <= max(kl[0][1], 0.05 * kl[0][0]) else {"failed": text}

    def answer(self, line):
        kind, *words = line.split()
        job = dict(word.split("=", 1) for word in words if "=" in word)
        self.end = time.monotonic() + float(job.get("seconds", 3600))
        try:
            return {"fit": self.fit, "step": self.step, "same-text": self.same_text}[kind](job)
        except KeyError as error:
            return {"skipped": f"no job {error}"}
        except (Skip, OSError, ValueError) as error:
            return {"skipped": str(error)}


def main():
    models = Models(sys.argv[1], "--emulate" in sys.argv)
    for line in sys.stdin:
        print(json.dumps(models.answer(line)), flush=True)


if __name__ == "__main__":
    main()
