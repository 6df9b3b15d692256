"""Whole models, and what fits in a card's memory, for scripts/bench-gpu: reads jobs, one per line, and answers each with a line
of JSON.

usage: python3 models.py FOLDER [--emulate]

    step heads=32/8 d=128 batch=8 rows=32768 queries=1 kv=best-3 shape=llama3-8b     tokens per second of all sequences
    step ... llama=q8_0 shape=llama3-8b                                              the same of libllama
    fit heads=32/8 d=128 batch=8 rows=0 queries=1 shape=llama3-8b kv=best-3 gib=22.35    the longest context, in tokens

Models have random weights (bench/random_model, q4_K). The memory of a cache is what `lowkey plan` says for two layers of the
shape, times the layers; llama.cpp's is its cells. RESERVED is left for the card's context, activations and scratch.
"""
import json
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GIB = 2**30
RESERVED = GIB  # of a card, next to weights and rows
LAYERS = {"llama3-8b": 32, "llama2-7b": 32, "llama2-13b": 40}
KV_HEADS = {"llama3-8b": 8, "llama2-7b": 32, "llama2-13b": 40}
LLAMA_BITS = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}  # of ggml's blocks
D_HEAD = 128
SHORT = 2  # layers of the file that memory is planned with


class Skip(Exception):
    """Why a job gives no figure."""


class Models:
    def __init__(self, folder, emulate):
        self.folder, self.emulate = folder, emulate
        self.build = os.environ.get("LOWKEY_BUILD_DIR", os.path.join(TOP, "build"))

    def program(self, name):
        """A program, from the folder that was carried along or from the build."""
        for path in (os.path.join(self.folder, os.path.basename(name)), os.path.join(self.build, name)):
            if os.access(path, os.X_OK):
                return path
        raise Skip(f"{name} is not built")

    def run(self, *command):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Skip((result.stderr.strip() or f"status {result.returncode}").split("\n")[-1][:200])
        return result.stdout

    def model(self, shape, layers, kv_heads):
        """The path of a file with random weights, which is written once."""
        if shape not in LAYERS:
            raise Skip(f"no random model of {shape}'s shape")
        path = os.path.join(self.folder, "objects", f"{shape}-{layers}-{kv_heads}.gguf")
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.run(self.program("bench/random_model"), shape, "q4_K", path + ".part", str(layers), str(kv_heads))
            os.rename(path + ".part", path)
        return path

    # ---- memory ----

    def plan(self, path, kv, rows):
        """Bytes of the cache at that length, and of the weights that a card holds, for the layers of the file."""
        found = json.loads(self.run(self.program("lowkey"), "plan", "-m", path, "--kv", kv, "-c", str(rows), "--json"))["plans"][0]
        return found["cache_bytes"]

    def fit(self, job):
        """The longest context that fits `batch` times: weights, rows and RESERVED in `gib`."""
        shape, batch = job["shape"], int(job.get("batch", 1))
        path = self.model(shape, SHORT, KV_HEADS[shape])
        one = self.model(shape, SHORT // 2, KV_HEADS[shape])
        per_layer = (os.path.getsize(path) - os.path.getsize(one)) / (SHORT - SHORT // 2)
        weights = os.path.getsize(one) + per_layer * (LAYERS[shape] - SHORT // 2)
        left = float(job["gib"]) * GIB - RESERVED - weights
        if "llama" in job:
            row = 2 * LAYERS[shape] * KV_HEADS[shape] * D_HEAD * LLAMA_BITS[job["llama"]] / 8
            return {"rate": int(left / batch / row) // 256 * 256}
        # Linear from 64k on: levels of constant size, and others that are shares of the rows.
        low, high = 64 * 1024, 128 * 1024
        a, b = (self.plan(path, job["kv"], n) * LAYERS[shape] / SHORT for n in (low, high))
        slope = (b - a) / (high - low)
        return {"rate": int(low + (left / batch - a) / slope) // 256 * 256}

    # ---- speed ----

    def step(self, job):
        raise Skip("the engine has no device yet")

    def answer(self, line):
        kind, *words = line.split()
        job = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            return {"fit": self.fit, "step": self.step}[kind](job)
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
