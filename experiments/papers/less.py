"""Get More with LESS (Dong et al.): tables 2, 4, 5 and 7, figures 6 to 8."""
import os

from .runner import MODELS, TOP, WIKITEXT, Missing, paired, table

TITLE = "LESS"
MODEL = "smol"
# Neither text is in the training: it has WikiText-2 valid, other novels by the same author, and Shakespeare.
TEXTS = (WIKITEXT, "data/janeausten/mansfield_park.txt")
TITLES = {"test.txt": "WikiText-2 test", "mansfield_park.txt": "Mansfield Park"}
SHAKESPEARE = "data/tinyshakespeare/input.txt"
NOVELS = ("data/janeausten/persuasion.txt", "data/janeausten/emma.txt", SHAKESPEARE)
WIKI = ("less-text/wiki-aa", "less-text/wiki-ab")
CHATS = ("less-text/chat-a", "less-text/chat-b", "less-text/chat-c")


def recipes(rows, policy="h2o"):
    """[(label, recipe)] of a policy that keeps 2 `rows` rows: alone, with more rows than states take, with states. H2O keeps
    as many heavy hitters as new rows, TOVA chooses among all."""
    name, heavy, window = policy.upper(), rows if policy == "h2o" else 2 * rows - 1, rows if policy == "h2o" else 1
    alone = f"keep {heavy} by {policy}; window {window}: f16"
    more = f"keep {heavy + 8} by {policy}; window {window}: f16; layers 0-7: keep {heavy + 40} by {policy}: f16"
    return [(name, alone), (f"{name}, more rows", more), (f"{name}, LESS", f"{alone}; absorb less")]


def make_texts(lab):
    """The folder less-text: conversations to train on and to ask about (experiments/chat-text), and both in parts, from
    which equally many sequences are drawn."""
    if lab.render or os.path.exists(lab.path("less-text/chat-c")):
        return
    lab.run([os.path.join(TOP, "experiments", "chat-text"), "data", "less-text"])
    lab.run(["split", "-n", "l/2", "data/wikitext2/valid.txt", "less-text/wiki-"])
    with open(lab.path("less-text/train.txt"), encoding="utf-8") as file:
        conversations = file.read().split("\f")
    for i, name in enumerate("abc"):
        with open(lab.path(f"less-text/chat-{name}"), "w", encoding="utf-8") as file:
            file.write("\f".join(conversations[i::3]))


def networks(lab, name, *options, sequences, epochs, budget, prompt, files=None):
    """The name of a sidecar made by `lowkey train less`."""
    path = f"less-{name}.gguf"
    if lab.render or os.path.exists(lab.path(path)):
        return path
    make_texts(lab)
    texts = [word for file in files or NOVELS + WIKI + CHATS for word in ("-f", file)]
    lab.lowkey("train less", MODEL, *texts, "--markup", "-c", "4096", "--sequences", str(sequences), "--budget", budget, "--prompt", prompt,
               "--hidden", "64", "--epochs", str(epochs), "--queries", "64", "--rate", "0.005", "--dropout", "0", "--seed", "5",
               "--valid", "0.125", "-o", path, *options)
    return path


def main_networks(lab):
    return networks(lab, "h2o", sequences=48, epochs=30, budget="82,64,205,82,102", prompt="0,1024,0,2048")


def small_networks(lab, name, *options, budget="82", files=None):
    """For comparisons of networks with each other: a quarter of the training."""
    return networks(lab, name, *options, sequences=16, epochs=20, budget=budget, prompt="0,1024", files=files)


def speed_networks(lab):
    """Networks for measuring time, which does not depend on their values."""
    return networks(lab, "speed", sequences=2, epochs=1, budget="82", prompt="0")


def bench_less(lab, name, groups):
    """{(text, recipe): dict} of bench/less. groups: [(sidecar or None, [recipe, ...]), ...]"""
    out = f"results/{name}.tsv"
    if not lab.has(out):
        words = [word for sidecar, some in groups for word in (["--sidecar", sidecar] if sidecar else []) + some]
        texts = [word for text in TEXTS for word in ("-f", text)]
        threads = ["-t", str(lab.threads)] if lab.threads else []
        lab.run(["bench/less", *threads, *texts, f"models/{MODELS[MODEL][1]}", *words], out)
    found = {}
    for r in lab.measurement(out)["records"]:
        key = (os.path.basename(r["text"]), r["recipe"])
        row = found.setdefault(key, {**r["metrics"], "runs": []})
        row["runs"].append(r["metrics"])
    return found


def gap_table(found, rows):
    """rows: [(label, recipe, recipe of the policy alone)] for each text."""
    out = []
    for text, title in TITLES.items():
        full = found[text, "f16"]
        out.append([title, "full", f"{full['bytes'] / 2**20:.2f}", f"{full['ppl']:.2f} ± {full['error']:.2f}", "", ""])
        for label, recipe, alone in rows:
            r, lost = found[text, recipe], found[text, alone]["ppl"] - full["ppl"]
            gap = "" if recipe == alone else f"{100 * (found[text, alone]['ppl'] - r['ppl']) / lost:.0f} %"
            out.append(["", label, f"{r['bytes'] / 2**20:.2f}", f"{r['ppl']:.2f} ± {r['error']:.2f}",
                        f"{r['kl']:.4f} ± {r['kl_error']:.4f}", gap])
    return table(["text", "cache", "MiB", "perplexity", "KL", "gap recovered"], out)


def table2(lab):
    """Claim (Llama 2 7B, word perplexity): WikiText at 2, 5 and 10 %: H2O 13.33, 9.86, 9.30, LESS 10.75, 9.66, 9.23, full cache 8.79; PG-19 at 2 %: 37.0, 32.2, 23.8."""
    budgets = [("2 %", 41), ("5 %", 102), ("10 %", 205)]
    rows = [(f"{share}, {label}", recipe, recipes(n)[0][1]) for share, n in budgets for label, recipe in recipes(n)]
    plain = [recipe for _, recipe, _ in rows if "absorb" not in recipe]
    found = bench_less(lab, "less-2", [(None, plain), (main_networks(lab), [recipe for _, recipe, _ in rows if "absorb" in recipe])])
    return [gap_table(found, rows)]


def table7(lab):
    """Claim (Llama 2 7B with TOVA, 5 %): WikiText 9.97 with TOVA, 9.72 with LESS, 8.79 with the full cache; PG-19 27.88, 27.34, 23.79."""
    some = recipes(102, "tova")
    sidecar = networks(lab, "tova", "--policy", "tova", sequences=48, epochs=30, budget="204", prompt="0,1024,0,2048")
    found = bench_less(lab, "less-7", [(None, [kv for _, kv in some[:2]]), (sidecar, [some[2][1]])])
    return [gap_table(found, [(label, kv, some[0][1]) for label, kv in some])]


def other_networks(lab):
    """Claim: none; the paper has networks for each head, and trains on C4."""
    alone, more, state = (kv for _, kv in recipes(41))
    as_many = "keep 64 by h2o; window 64: f16" # bytes, within 1 %, as the state with the networks of --share 2
    sets = [("for each query head", small_networks(lab, "r8", "--features", "8")),
            ("for each layer (`--share 2`)", small_networks(lab, "share2", "--share", "2")),
            ("trained without WikiText and the novel's author", small_networks(lab, "other", files=(SHAKESPEARE, *CHATS)))]
    found = bench_less(lab, "less-networks", [(None, [alone, more, as_many])] + [(sidecar, [state]) for _, sidecar in sets])
    rows = []
    caches = [("H2O", alone, 0), ("H2O, more rows", more, 0), ("H2O, 64 and 64 rows", as_many, 0)]
    for label, recipe, i in caches + [(f"LESS, {name}", state, i) for i, (name, _) in enumerate(sets)]:
        runs = [found[text, recipe]["runs"][i] for text in TITLES]
        row = [label, *(f"{runs[0][part] / 2**20:.2f}" for part in ("bytes", "network"))]
        for text, run in zip(TITLES, runs):
            full, lost = found[text, "f16"]["ppl"], found[text, alone]["ppl"]
            row += [f"{run['ppl']:.2f} ± {run['error']:.2f}", f"{100 * (lost - run['ppl']) / (lost - full):.0f} %"]
        rows.append(row)
    head = [cell for title in TITLES.values() for cell in (f"{title}: perplexity", "gap recovered")]
    return [table(["cache", "MiB", "networks, MiB", *head], rows)]


def answers(lab, name, tasks, n_ctx, options=(), limit=50, rows=None):
    """Scores of generated answers with `rows` heavy hitters and as many new rows (default: 5 % together), and what LESS
    changes in each item."""
    some = [("full", "f16")] + recipes(rows or round(n_ctx / 32))[1:]
    make_texts(lab)
    found = lab.eval(name, MODEL, [task for task, _ in tasks], [kv for _, kv in some[1:]], "--data", "less-text/data", "-c", str(n_ctx),
                     "--limit", str(limit), *options, sidecar=main_networks(lab))
    items = lab.read_items(f"results/{name}.jsonl")
    lines = []
    for label, kv in some:
        row = [label]
        for task, scores in tasks:
            if (task, kv) not in found:
                raise Missing(name)
            for score in scores:
                metric = found[task, kv]["metrics"][score]
                row.append(f"{metric['value']:.3f} ± {metric['stderr']:.3f}")
            if "absorb" in kv:
                row.append(", ".join("{:+.3f} ± {:.3f}".format(*paired(items, task, some[1][1], kv, score)) for score in scores))
            else:
                row.append("")
        lines.append(row)
    head = ["cache"]
    for task, scores in tasks:
        head += [f"{task}: {NAMES[score]}" for score in scores] + ["LESS − more rows, paired"]
    return table(head, lines)


NAMES = {"rouge1": "ROUGE-1", "rougeL": "ROUGE-L", "nll": "nats per token of the right answer", "exact_match": "right", "score": "right"}
SUMMARY = [("summary", ("rouge1", "rougeL", "nll"))]


def table4(lab):
    """Claim (Llama 2 7B, ROUGE-1 at 5 %): MultiNews 13.38 with H2O, 15.42 with LESS, 23.79 with the full cache; CNN/DailyMail 18.18, 19.21, 26.25; XSum 29.03, 30.03, 30.65."""
    forms = [("Answers of at least 16 tokens in the chat template:", "min16", 1024, ("--min-answer", "16")),
             ("In the chat template, where the model may end its turn at once:", "chat", 1024, ()),
             ("Answers of at least 16 tokens in a plain text of 2,048 tokens, after one answered question:", "shots", 2048, ("--shots", "1", "--min-answer", "16"))]
    return [part for title, name, n_ctx, options in forms for part in (title, answers(lab, f"less-4-{name}", SUMMARY, n_ctx, options))]


def chat(lab):
    """Problems of GSM8K after five solved turns, and RULER's questions about documents, in the chat template. The paper has no chats."""
    tasks = [("gsm8k", ("exact_match", "nll")), ("qa", ("score", "nll"))]
    return [answers(lab, "less-chat", tasks, 1536, ("--min-answer", "4"), lab.limit(100, 50), rows=32)]


def figure6(lab):
    """Claim: attention with LESS has a smaller Hellinger distance to the full cache's."""
    make_texts(lab)
    out = "results/less-hellinger.tsv"
    some = recipes(41)[1:]
    if not lab.has(out):
        threads = ["-t", str(lab.threads)] if lab.threads else []
        lab.run(["bench/answers", *threads, "-n", str(lab.limit(12, 8)), "-a", "24", "--hellinger", "less-text/held.txt",
                 f"models/{MODELS[MODEL][1]}", some[0][1], "--sidecar", main_networks(lab), some[1][1]], out)
    rows = []
    for r in lab.measurement(out)["records"]:
        if r["recipe"] in [recipe for _, recipe in some]:
            m, label = r["metrics"], {recipe: label for label, recipe in some}[r["recipe"]]
            rows.append([label, r["at"]["kind"], str(m["tokens"]), f"{m['kl']:.3f} ± {m['kl_error']:.3f}"] +
                        [f"{m[name]:.4f}" for name in ("hellinger", "state_share", "missed")])
    return [table(["cache", "kind of token", "tokens", "KL", "Hellinger distance", "share of the states", "share of evicted rows in the full cache"], rows)]


def figure7(lab):
    """Claim: perplexity falls as R grows, up to a point at which more rows in its place are better."""
    sizes = (2, 8, 32)
    alone, _, state = (kv for _, kv in recipes(41))
    groups = [(None, [alone])] + [(small_networks(lab, f"r{size}", "--features", str(size)), [state]) for size in sizes]
    found = bench_less(lab, "less-r", groups)
    rows = []
    for text, title in TITLES.items():
        full, lost = found[text, "f16"]["ppl"], found[text, alone]["ppl"]
        rows.append([title] + [f"{ppl:.2f} ({100 * (lost - ppl) / (lost - full):.0f} %)" for ppl in [lost] + [run["ppl"] for run in found[text, state]["runs"]]])
    return [table(["text: perplexity (gap recovered)", "H2O"] + [f"R = {size}" for size in sizes], rows)]


def figure8(lab):
    """Claim: LESS and more rows are alike in short prompts, LESS is better in long ones."""
    rows = []
    for n_ctx in (512, 1024, 2048, 4096):
        name = "less-4-min16" if n_ctx == 1024 else f"less-8-{n_ctx}"
        answers(lab, name, SUMMARY, n_ctx, ("--min-answer", "16"), 50 if n_ctx <= 2048 else lab.limit(50, 10))
        items = lab.read_items(f"results/{name}.jsonl")
        some = recipes(round(n_ctx / 32))[1:]
        rows.append([f"{n_ctx:,} tokens"] + ["{:+.3f} ± {:.3f}".format(*paired(items, "summary", a, b, score))
                                            for score in ("rouge1", "nll") for a, b in (("f16", some[0][1]), (some[0][1], some[1][1]))])
    return [table(["prompt", "ROUGE-1: H2O − full", "LESS − H2O", "nats per token: H2O − full", "LESS − H2O"], rows)]


TABLES = [("table 2", table2), ("table 4", table4), ("networks", other_networks), ("table 7", table7), ("chat", chat), ("figure 6", figure6), ("figure 7", figure7),
          ("figure 8", figure8)]
