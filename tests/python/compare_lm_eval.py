#!/usr/bin/env python3
"""Compare the model class of the Python package with the server, both under lm-eval, on local tasks.

usage: compare_lm_eval.py [options]      needs the packages lowkey and lm_eval, and $LOWKEY_DATA

Multiple choice compares the share of right answers, and the log-likelihoods of the choices. The server evaluates
prompts with `echo` in steps. Perplexity is that of the second half of chunks, and compared with `lowkey eval text`.
Generation compares the answers.
"""
import argparse
import contextlib
import functools
import json
import logging
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import lm_eval
import lm_eval.tasks
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

import lowkey
import lowkey.evaluate
import lowkey.lm_eval

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tokens:
    """What lm-eval's API models need of a tokenizer."""

    def __init__(self, model):
        self.model = model
        self.eos_token = None  # a stop text: the server ends answers itself
        self.bos_token_id = self.eos_token_id = model.bos if model.bos is not None else model.eos


@register_model("lowkey-served")
class Served(LocalCompletionsAPI):
    """local-completions with lowkey's tokenizer. Users would name a Hugging Face tokenizer instead."""

    def __init__(self, tokens_of, **options):
        super().__init__(tokenizer_backend=None, **options)
        self.tokenizer_backend, self.tokenized_requests = "huggingface", True  # prompts are sent as tokens
        self.tokenizer = Tokens(lowkey.Model(tokens_of, threads=1))

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        return self.tokenizer.bos_token_id

    def tok_encode(self, string, add_special_tokens=None, **_):
        if isinstance(string, (list, tuple)):
            return [self.tok_encode(text) for text in string]
        return self.tokenizer.model.tokenize(string, control=True)

    def decode_batch(self, tokens):
        return [self.tokenizer.model.detokenize(item) for item in tokens]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(options, kv):
    """`lowkey serve`, as the base URL of its completions."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([options.server or options.lowkey, "serve", "-m", options.model, "--kv", kv, "-t", str(options.threads),
                                    "--port", str(port), "--name", "local"], stdout=log, stderr=log)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                    break
                if process.poll() is not None:
                    log.seek(0)
                    sys.exit("lowkey serve ended: " + log.read().decode(errors="replace"))
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/v1/completions"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def lm_eval_run(gguf, model, arguments, task, limit):
    """Results and samples of one task. gguf: the file whose vocabulary the task uses."""
    manager = lm_eval.tasks.TaskManager(include_path=lowkey.evaluate.TASKS, metadata={"model": gguf})
    out = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=[task], limit=limit, bootstrap_iters=0,
                                  task_manager=manager, log_samples=True, verbosity="ERROR")
    return out["results"][task], sorted(out["samples"][task], key=lambda sample: sample["doc_id"])


def lowkey_eval(options, task, kv, *arguments):
    """Metrics of `lowkey eval`."""
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "results.jsonl")
        subprocess.run([options.lowkey, "eval", task, "-m", options.model, "-t", str(options.threads), "--kv", kv, "-o", path,
                        *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    return [row["metrics"] for row in rows if row["type"] == "result" and row["kv"] == kv][-1]


def responses(samples):
    """Log-likelihoods of each sample's requests."""
    return [[float(response[0]) for response in sample["filtered_resps"]] for sample in samples]


def largest_difference(a, b):
    """Of the log-likelihoods of choices, each relative to the first choice of its question."""
    return max(abs((x - p[0]) - (y - q[0])) for p, q in zip(a, b) for x, y in zip(p, q))


def chunk_pairs(model, tokens, n, n_chunk):
    """The halves of each chunk of n tokens as texts; None if tokens do not survive being texts."""
    pairs, begin = [], model.tokenize("")
    for i in range(n_chunk):
        chunk = tokens[i * n : (i + 1) * n]
        if begin:
            chunk[0] = begin[0]
        given, rest = chunk[: n // 2 + 1], chunk[n // 2 + 1 :]
        context, continuation = model.detokenize(given), model.detokenize(rest)
        if context != context.rstrip() or "\ufffd" in context + continuation:
            return None
        if (model.tokenize(context, begin=False, control=True) != given
                or model.tokenize(context + continuation, begin=False, control=True) != chunk):
            return None
        pairs.append({"context": context, "continuation": continuation})
    return pairs


def write_chunks(options, folder):
    """Chunks as `lowkey eval text` makes them, of at most options.ctx tokens. Returns the number of scored tokens."""
    model = lowkey.Model(options.model, threads=1)
    text = pathlib.Path(options.text).read_bytes().decode()  # line ends as they are
    tokens = model.tokenize("") + model.tokenize(text[: 16 * options.ctx * options.chunks], begin=False)
    for n in range(options.ctx, options.ctx // 2, -1):
        pairs = chunk_pairs(model, tokens, n, options.chunks)
        if pairs:
            break
    else:
        sys.exit("no length of chunks survives being text; choose another --text")
    options.ctx = n
    path = pathlib.Path(folder, "chunks.jsonl")
    path.write_text("\n".join(map(json.dumps, pairs)) + "\n", encoding="utf-8")
    os.environ["LOWKEY_CHUNKS"] = str(path)
    return options.chunks * (n - n // 2 - 1)


class Table:
    def __init__(self):
        self.rows = [("task", "kv", "figure", "class", "serve", "lowkey eval")]

    def add(self, task, kv, figure, *values):
        texts = [value if isinstance(value, str) else f"{value:.4f}" for value in values]
        self.rows.append((task, kv, figure, *texts))
        print("  ".join(self.rows[-1]), file=sys.stderr)

    def print(self):
        widths = [max(len(row[i]) for row in self.rows) for i in range(6)]
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def guard(function, *arguments):
    """Run lm-eval with the server; what the server does not support is a cell of the table."""
    try:
        return function(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        print("serve:", str(error).split("\n", maxsplit=1)[0], file=sys.stderr)
        return None


def compare(options, kv, table):
    class_args = {"model": options.model, "kv": kv, "threads": options.threads}
    steps_args = {**class_args, "context": "steps"}
    run = functools.partial(lm_eval_run, options.model)
    with server(options, kv) as url:
        served_args = {"model": "local", "base_url": url, "tokens_of": options.model, "max_retries": 1, "num_concurrent": 1}

        task = "local_" + options.questions
        ours, _ = run("lowkey", class_args, task, options.limit)
        table.add(options.questions, kv, "acc, context=prompt", ours["acc,none"], "-", "-")
        ours, samples = run("lowkey", steps_args, task, options.limit)
        served = guard(run, "lowkey-served", served_args, task, options.limit)
        table.add(options.questions, kv, "acc, context=steps", ours["acc,none"], served[0]["acc,none"] if served else "-", "-")
        table.add(options.questions, kv, f"  largest difference, {options.limit} questions, nats", "reference",
                  largest_difference(responses(samples), responses(served[1])) if served else "-", "-")

        n_scored = options.n_scored
        ours = run("lowkey", steps_args, "local_chunks", None)[1]
        served = guard(run, "lowkey-served", served_args, "local_chunks", None)
        metrics = lowkey_eval(options, "text", kv, "--text", options.text, "-c", str(options.ctx), "--limit",
                                 str(options.chunks))
        ppl = [math.exp(-sum(map(sum, responses(samples))) / n_scored) if samples else "-"
               for samples in (ours, served and served[1])]
        table.add("text", kv, "perplexity", *ppl, metrics["ppl"]["value"])

        ours = run("lowkey", class_args, "local_rolling", None)[0]
        served = guard(run, "lowkey-served", {**served_args, "max_length": 8192}, "local_rolling", None)
        table.add("rolling", kv, "word perplexity", ours["word_perplexity,none"],
                  served[0]["word_perplexity,none"] if served else "-", "-")

        ours, samples = run("lowkey", {**class_args, "split_prompts": False}, "local_gsm8k", options.generate)
        served = guard(run, "lowkey-served", served_args, "local_gsm8k", options.generate)
        texts = [[sample["resps"][0][0] for sample in run] for run in (samples, served[1] if served else [])]
        table.add("gsm8k", kv, "exact match", ours["exact_match,none"],
                  served[0]["exact_match,none"] if served else "-", "-")
        table.add("gsm8k", kv, "same answers", "reference",
                  f"{sum(a == b for a, b in zip(*texts))} of {len(texts[0])}" if served else "-", "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    cache = os.environ.get("LOWKEY_CACHE") or os.path.expanduser("~/.cache/lowkey")
    parser.add_argument("-m", "--model", default=os.path.join(cache, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--lowkey", default=os.environ.get("LOWKEY_BIN", str(ROOT / "build" / "lowkey")))
    parser.add_argument("--server", help="the program that serves (default: that of --lowkey)")
    parser.add_argument("--kv", action="append")
    parser.add_argument("--questions", default="arc_easy", choices=["arc_easy", "arc_challenge"])
    parser.add_argument("--limit", type=int, default=50, help="questions")
    parser.add_argument("--generate", type=int, default=5, help="word problems")
    parser.add_argument("--ctx", type=int, default=1024, help="tokens of a chunk of text")
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--text", help="default: $LOWKEY_DATA/janeausten/persuasion.txt")
    parser.add_argument("-t", "--threads", type=int, default=1)
    options = parser.parse_args()
    data = os.environ.get("LOWKEY_DATA")
    if not data or not os.path.exists(options.model):
        print("skipped: $LOWKEY_DATA or the model is missing")
        sys.exit(77)
    options.text = options.text or os.path.join(data, "janeausten", "persuasion.txt")
    logging.disable(logging.WARNING)
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        options.n_scored = write_chunks(options, folder)
        for kv in options.kv or ["f16", "best-3"]:
            compare(options, kv, table)
    table.print()


if __name__ == "__main__":
    main()
