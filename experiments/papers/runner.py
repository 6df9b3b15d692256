"""Runs lowkey for the tables of the papers, keeps what it prints, and formats numbers.

Everything is measured from a work folder with these entries, so that saved commands have short paths:

  lowkey, bench       the program, and the folder of benchmarks
  models, data        folders of models and of data sets
  NAME.lk.gguf        bases made by `lowkey compress`; large, not kept in the repository
  results/            what the programs printed, and NAME.command, the command that did

A measurement that has its results is not repeated, so an interrupted run continues where it stopped. The repository has
the figures as a table for each paper (bench/support/results.py), and --render reads them from there.
"""
import json
import math
import os
import resource
import shlex
import subprocess
import sys

from support import results

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Tasks that lm-eval runs with the Python package; `lowkey eval` runs the others.
LM_EVAL = ("arc_easy", "arc_challenge", "openbookqa", "piqa", "social_i_qa", "winogrande", "hellaswag", "gsm8k", "mgsm", "summary")

# Name in the tables, file in the folder of models.
MODELS = {
    "smol": ("SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "qwen": ("Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"),
    "mha": ("tiny-mha", "tiny-mha.gguf"),
    "alibi": ("tiny-alibi", "tiny-alibi.gguf"),
}
# Bases are fitted on the first; nothing is chosen on the others.
CALIBRATION = "data/wikitext2/valid.txt"
WIKITEXT, NOVEL = "data/wikitext2/test.txt", "data/janeausten/emma.txt"


def file_of(model):
    """Of a model in MODELS, or of NAME.gguf that was written into the work folder."""
    return f"models/{MODELS[model][1]}" if model in MODELS else f"{model}.gguf"


def children_seconds():
    """CPU time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Missing(Exception):
    """A result that has not been measured, while only formatting."""


class Lab:
    """One run: where things are, how much to measure."""

    def __init__(self, work, quick, threads, kept=None):
        """`kept`: measurements of a table; then nothing is measured."""
        self.work, self.quick, self.threads, self.kept = work, quick, threads, kept
        self.render = kept is not None
        self.used = [] # names of results that the tables have read
        self.items = set() # those whose single items they have read

    def limit(self, full, quick):
        return quick if self.quick else full

    def path(self, name):
        return os.path.join(self.work, name)

    def has(self, name):
        """Whether a result has been measured."""
        if name not in self.used:
            self.used.append(name)
        return results.find(self.kept, name) is not None if self.render else os.path.exists(self.path(name))

    def made(self, name):
        """Whether the work folder has a file that commands need. Formatting needs none."""
        return self.render or os.path.exists(self.path(name))

    def run(self, command, out=None):
        """Run a command in the work folder; with `out`, keep its standard output there once it has succeeded."""
        if self.render:
            raise Missing(out or " ".join(command))
        print("+", " ".join(command), file=sys.stderr, flush=True)
        before = children_seconds()
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOWKEY_")} # the command says all
        done = subprocess.run(command, cwd=self.work, env=env, stdout=subprocess.PIPE if out else subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit(f"paper-tables: '{command[0]} {command[1]}' failed; run the same command again to continue")
        print(f"  {children_seconds() - before:.0f} s of CPU time", file=sys.stderr, flush=True)
        if out:
            for name, text in ((out, done.stdout), (out + ".command", f"{shlex.join(command)} > {out}".encode())):
                with open(self.path(name) + ".new", "wb") as file:
                    file.write(text)
                os.replace(self.path(name) + ".new", self.path(name))

    def lowkey(self, verb, model, *options, out=None):
        threads = ["-t", str(self.threads)] if self.threads else []
        self.run(["./lowkey", *verb.split(), "-m", file_of(model), *threads, *options], out)

    def evaluate(self, model, tasks, *options):
        threads = ["-t", str(self.threads)] if self.threads else []
        command = [sys.executable, "-m", "lowkey.evaluate", "-m", file_of(model), "--tasks", ",".join(tasks)]
        self.run([*command, *threads, *options])

    def basis(self, model, name, *options, text=CALIBRATION, tokens="64k"):
        """The name of a sidecar made by `lowkey compress`, and what it printed (a dict)."""
        path, report = f"{model}-{name}.lk.gguf", f"results/compress-{model}-{name}.json"
        if not self.has(report) or not self.made(path):
            source = ["--text", text, "--tokens", tokens] if text else []
            self.lowkey("compress", model, "--json", *source, "-o", path, *options, out=report)
        return path

    def report(self, model, name):
        return results.to_compress(self.measurement(f"results/compress-{model}-{name}.json"))

    def measurement(self, name):
        """A result as a measurement: of the kept table, or of what the program printed."""
        if not self.has(name):
            raise Missing(name)
        return results.find(self.kept, name) if self.render else parse(self, name)

    def read_lines(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.readlines()

    def read_results(self, name):
        """{(task, recipe): metrics} of a file of `lowkey eval`."""
        if not self.has(name):
            return {}
        return {(r["at"]["task"], r["recipe"]): {"metrics": results.to_metrics(r["metrics"])}
                for r in self.measurement(name)["records"] if "task" in r["at"] and "key" not in r["at"]}

    def read_items(self, name):
        """{(task, recipe): {item: record}} of a file of `lowkey eval`."""
        self.items.add(name)
        found = {}
        for r in self.measurement(name)["records"]:
            if "key" in r["at"]:
                found.setdefault((r["at"]["task"], r["recipe"]), {})[r["at"]["key"]] = r["metrics"]
        return found

    def eval(self, name, model, tasks, recipes, *options, sidecar=None):
        """{(task, recipe): result line} of `lowkey eval` and lowkey.evaluate, kept in results/NAME.jsonl."""
        out = f"results/{name}.jsonl"
        want = {(task, kv) for task in tasks for kv in recipes}
        if not self.render and not want <= set(self.read_results(out)):
            common = ["-o", out, *options]
            for kv in recipes:
                common += ["--kv", kv]
            if sidecar:
                common += ["--sidecar", sidecar]
            own = [task for task in tasks if task not in LM_EVAL]
            foreign = [task for task in tasks if task in LM_EVAL]
            if own:
                self.lowkey("eval", model, *own, *common)
            if foreign:
                self.evaluate(model, foreign, *common)
        return self.read_results(out)

    def text(self, name, model, recipes, text, ctx, chunks, sidecar=None):
        """{recipe: metrics} of perplexity and KL, with weights in f32."""
        options = ("--text", text, "--weights", "f32", "-c", str(ctx), "--limit", str(chunks))
        found = self.eval(name, model, ["text"], recipes, *options, sidecar=sidecar)
        return {kv: found[("text", kv)]["metrics"] for kv in recipes if ("text", kv) in found}

    def bench(self, name, model, recipes, *options, sidecar=None):
        """The results of `lowkey bench`, as a list of dicts."""
        out = f"results/{name}.json"
        if not self.has(out):
            command = ["--json", *options]
            for kv in recipes:
                command += ["--kv", kv]
            if sidecar:
                command += ["--sidecar", sidecar]
            self.lowkey("bench", model, *command, out=out)
        return results.to_answer(self.measurement(out), "results")["results"]

    def llama_depth(self, name, model, depth, n_tokens, repeat):
        """Tokens per second that llama.cpp decodes with an f16 cache, with flash attention or without, whichever is faster."""
        best = 0
        for flash in ("off", "on"):
            out = f"results/{name}-{flash}.json"
            if not self.has(out):
                self.run(["bench/llama_depth", file_of(model), str(depth), "f16", "f16", flash, str(self.threads or 2), "0", str(n_tokens), str(repeat)], out)
            best = max([best, *results.to_answer(self.measurement(out), "results")["results"][0]["samples_ts"]])
        return best

    def plan(self, name, model, recipes, contexts, *options, sidecar=None):
        out = f"results/{name}.json"
        if not self.has(out):
            command = ["--json", "-c", ",".join(contexts), *options]
            for kv in recipes:
                command += ["--kv", kv]
            if sidecar:
                command += ["--sidecar", sidecar]
            self.lowkey("plan", model, *command, out=out)
        return results.to_answer(self.measurement(out), "plans")["plans"]


# Columns of what bench/less, bench/answers and bench/batch print.
LESS = ("text", "ppl", "error", "kl", "kl_error", "top1", "bytes", "state", "network", "recipe")
ANSWERS = ("recipe", "kind", "tokens", "kl", "kl_error", "nats", "top1", "worse", "hellinger", "state_share", "missed")
BATCH = ("n", "tokens_per_second", "of_one", "ms_per_pass", "build_ms", "cache_mib", "all_tokens_per_second", "prompt_seconds")


def parse(lab, name):
    """The measurement that a file of results holds."""
    lines = lab.read_lines(name)
    if name.endswith(".jsonl"):
        return results.of_eval(map(json.loads, lines))
    command = lab.read_lines(name + ".command")[0]
    if name.endswith(".tsv"):
        return results.of_columns(lines, command, ANSWERS if "answers" in command.split()[0] else LESS, MODELS["smol"][1])
    if name.endswith(".txt"):
        words = [" ".join(line.split()) for line in lines if line.split()[:1] and line.split()[0].isdigit()]
        return results.of_columns(words, command, BATCH, MODELS["smol"][1], " ")
    answer = json.loads("".join(lines))
    if isinstance(answer, list): # of bench/llama_depth
        return results.of_answer({"model": os.path.basename(command.split()[1]), "results": answer}, command, "results", ("depth",))
    if "layers" in answer:
        return results.of_compress(answer, command)
    return results.of_answer(answer, command, *(("plans", ("n_tok",)) if "plans" in answer else ("results", ("depth",))))


def paired(items, task, a, b, score):
    """Mean of b's score minus a's, item by item, and its standard error."""
    change = [record[score] - items[task, a][key][score] for key, record in items[task, b].items() if key in items[task, a]]
    mean = sum(change) / len(change)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in change) / (len(change) - 1) / len(change))


def correlation(x, y):
    """Pearson's correlation of two lists, and its standard error."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    xx, yy = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
    r = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / math.sqrt(xx * yy)
    return {"value": r, "stderr": math.sqrt((1 - r * r) / (n - 2))}


# ---- formatting ----


def cell(metric, digits=3, scale=1):
    """'value ± standard error' of a metric, or '-'."""
    if metric is None:
        return "-"
    value, error = metric["value"] * scale, metric.get("stderr")
    return f"{value:.{digits}f}" + (f" ± {error * scale:.{digits}f}" if error else "")


def table(head, rows):
    """A Markdown table; columns after the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def text_table(lab, name, model, groups, texts, ctx, chunks):
    """Bits, perplexity and KL by text. groups: [(sidecar or None, [(label, recipe), ...]), ...]"""
    head = ["cache", "bits per value"]
    for title, _ in texts:
        head += [f"{title}: perplexity", "KL", "same top-1, %"]
    rows = []
    for i, (sidecar, recipes) in enumerate(groups):
        found = [lab.text(f"{name}-{model}-{i}-{title.lower()}", model, [kv for _, kv in recipes], path, ctx, chunks, sidecar)
                 for title, path in texts]
        for label, kv in recipes:
            if not all(kv in f for f in found):
                raise Missing(name)
            row = [label, cell(found[0][kv].get("bits_per_value"), 2).split(" ")[0]]
            for f in found:
                row += [cell(f[kv]["ppl"], 2), cell(f[kv].get("kl_mean"), 4), cell(f[kv].get("top1"), 1, 100)]
            rows.append(row)
    return table(head, rows)


def task_table(lab, name, model, groups, tasks, options):
    """Scores by task. groups as in text_table. tasks: [(title, task, metric), ...]"""
    head = ["cache", "bits per value"] + [title for title, _, _ in tasks]
    rows = []
    for i, (sidecar, recipes) in enumerate(groups):
        found = lab.eval(f"{name}-{model}-{i}", model, list(dict.fromkeys(task for _, task, _ in tasks)), [kv for _, kv in recipes],
                         *options, sidecar=sidecar)
        for label, kv in recipes:
            if not all((task, kv) in found for _, task, _ in tasks):
                raise Missing(name)
            lines = [found[task, kv]["metrics"] for _, task, _ in tasks]
            bits = [m["bits_per_value"]["value"] for m in lines]
            rows.append([label, f"{sum(bits) / len(bits):.2f}"] + [cell(m.get(metric)) for m, (_, _, metric) in zip(lines, tasks)])
    return table(head, rows)


ROUNDS = 3  # of each cache, in turn
BATCH_LIMIT = 512 * 2**20  # bytes of all caches of a batch: a batch that needs more is left out


def batch_table(lab, name, model, methods, n_prompt, n_new, sizes, text):
    """Tokens per second of all sessions of a batch, prompts' time included: means and standard errors of ROUNDS rounds, and
    multiples of the first method's, from bench/batch. methods: [(label, recipe, sidecar or None), ...]"""
    found = [{} for _ in methods]
    for turn in range(ROUNDS):
        for i, (_, kv, sidecar) in enumerate(methods):
            plan = lab.plan(f"{name}-plan-{i}", model, [kv], [str(n_prompt + n_new)], sidecar=sidecar)[0]
            out = f"results/{name}-{i}-{turn}.txt"
            if not lab.has(out):
                fitting = [str(n) for n in sizes if n * plan["cache_bytes"] <= BATCH_LIMIT]
                options = (["--sidecar", sidecar] if sidecar else []) + (["--threads", str(lab.threads)] if lab.threads else [])
                lab.run(["bench/batch", "--prompts", text, *options, file_of(model), kv, str(n_prompt), str(n_new), *fitting], out)
            for r in lab.measurement(out)["records"]:
                found[i].setdefault(r["metrics"]["n"], []).append(r["metrics"]["all_tokens_per_second"])
    rows = []
    for (label, _, _), speeds in zip(methods, found):
        row = [label]
        for n in sizes:
            mean, error = mean_and_error(speeds[n]) if n in speeds else (0, 0)
            times = f" ({mean / mean_and_error(found[0][n])[0]:.2f}x)" if n in found[0] else ""
            row.append(f"{mean:.1f} ± {error:.1f}{times}" if n in speeds else "out of memory")
        rows.append(row)
    return table(["cache"] + [f"{n} session{'s' * (n > 1)}, tokens/s" for n in sizes], rows)


def mean_and_error(values):
    mean = sum(values) / len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5
