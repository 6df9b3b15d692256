"""Palu: KV-Cache Compression with Low-Rank Projection (Chang et al.): tables 1 to 4, 6 to 8, figure 8."""
from .kvheads import TRAINING
from .runner import NOVEL, WIKITEXT, table, task_table, text_table

TITLE = "Palu"
TEXTS = [("WikiText", WIKITEXT), ("Emma", NOVEL)]
ZERO_SHOT = [("OBQA", "openbookqa", "acc"), ("HellaSwag", "hellaswag", "acc_norm"), ("PIQA", "piqa", "acc"),
             ("ARC-e", "arc_easy", "acc"), ("ARC-c", "arc_challenge", "acc_norm"), ("WinoGrande", "winogrande", "acc")]
LAZY = "all: k=latent(pre){0} v=latent{0}"
EAGER = LAZY + "; eager"  # as published: a prompt attends to approximated rows
EXACT_ROWS = "sink 4: f16; body: k=latent(pre) v=latent; window 128: f16"
LATENTS = [("as published", EAGER.format("")), ("lazy", LAZY.format(""))]


def palu_basis(lab, model, group, rank, search="fisher"):
    """A sidecar of Palu. Gradients of a large model are expensive, so they are taken of fewer tokens."""
    tokens = ("--fisher-tokens", {"mha": "64k", "smol": "16k", "qwen": "4k"}[model]) if search == "fisher" else ()
    return lab.basis(model, f"{search}-{group}-{rank[:2]}", "--method", "palu", "--group", group, "--rank", rank, "--rank-search", search, *tokens)


def granularities(lab, model):
    """Sidecars of M-, G- and J-LRD at half the rank, with Fisher ranks as in the paper."""
    groups = [("J-LRD", "all")] if model == "smol" else [("J-LRD", "all"), ("G-LRD, 4 heads", "4")]
    return [(name, palu_basis(lab, model, group, "50%")) for name, group in groups + [("M-LRD", "1")]]


def rows_of(name, recipes):
    return [(f"{name}, {how}", kv) for how, kv in recipes]


def perplexity_by_granularity(lab, model, ctx):
    groups = [(None, [("f16", "f16")])]
    groups += [(sidecar, rows_of(name, [*LATENTS, ("lazy, 4 sinks and a window of 128", EXACT_ROWS)]))
               for name, sidecar in granularities(lab, model)]
    return text_table(lab, "palu-1", model, groups, TEXTS, ctx, lab.limit(8, 4))


def table1(lab):
    """Claim: Llama-2-7B at 50 %: baseline 5.47, J-LRD 5.62, G-LRD 6.01, M-LRD 6.75."""
    return [perplexity_by_granularity(lab, "mha", 1024)]


def table1_smol(lab):
    """Claim: zero-shot accuracy 65.1 (baseline), 64.8 (J-LRD), 62.6 (G-LRD), 57.8 (M-LRD)."""
    groups = [(sidecar, [("f16", "f16")][:i == 0] + rows_of(name, LATENTS))
              for i, (name, sidecar) in enumerate(granularities(lab, "smol"))]
    options = ("--data", "data", "--limit", str(lab.limit(200, 50)))
    nats = [(title, task, "answer_nll_change") for title, task, _ in ZERO_SHOT]
    return [perplexity_by_granularity(lab, "smol", 2048), "Accuracy, in the paper's metrics:", task_table(lab, "palu-1-tasks", "smol", groups, ZERO_SHOT, options),
            "Change of the nats per token of the right answer, paired:", task_table(lab, "palu-1-tasks", "smol", groups, nats, options)]


def table2(lab):
    """Claim: Llama-2-7B at 4,096 tokens, 16, 3 and 2 bits: Palu-30 % 5.25, 5.33, 5.76 (without Hadamard 5.52, 9.48), Palu-50 % 5.63, 5.77, 6.41 (5.99, 10.58); KVQuant 5.35 and 6.95, Atom 6.15 and 117.88 in 3 and 2 bits; baseline 5.12."""
    bits = [("16 bits", ""), *[(f"{n} bits{how}", f"+asym{n}{option}") for n in (3, 2)
                               for how, option in (("", "(hadamard)"), (" without Hadamard", ""))]]
    groups = [(None, [("f16", "f16"), ("Atom, 3 bits", "asym3"), ("Atom, 2 bits", "asym2"), ("KVQuant, 3 bits", "kvquant-3"),
                      ("KVQuant, 2 bits", "sink 1: f16; body: kvquant2"), ("KIVI, 2 bits", "kivi-2"), ("best-2", "best-2")])]
    groups += [(palu_basis(lab, "smol", "all", rank), [(f"Palu-{rate}, {name}", EAGER.format(code)) for name, code in bits])
               for rate, rank in (("30 %", "70%"), ("50 %", "50%"))]
    return [text_table(lab, "palu-2", "smol", groups, TEXTS, 4096, lab.limit(4, 1))]


def table3(lab):
    """Claim (LongBench, Mistral-7B): baseline 42.54, Palu-30 % 41.55, Palu-50 % 36.23, in 3 bits 40.77 and 35.71, KIVI-2 41.45."""
    sidecar = palu_basis(lab, "smol", "all", "70%")
    groups = [(sidecar, [("f16", "f16"), ("KIVI-2", "kivi-2"), ("Palu-30 %, 3 bits, lazy", LAZY.format("+asym3(hadamard)")), ("best-2", "best-2")]),
              (sidecar, [("Palu-30 %, 3 bits, as published", EAGER.format("+asym3(hadamard)"))])]
    tasks = [("needle", "needle", "score"), ("RULER vt", "vt", "score"), ("RULER fwe", "fwe", "score"), ("RULER qa", "qa", "score")]
    return [task_table(lab, "palu-3", "smol", groups, tasks, ("--text", NOVEL, "--data", "data", "-c", "2048", "--limit", str(lab.limit(100, 50))))]


def table4(lab):
    """Claim (Llama-2-7B, mean accuracy of six tasks, without and with LoRA): baseline 65.05; J-LRD at 50 % 64.83 and 65.65, G-LRD 62.61 and 64.62, M-LRD 57.79 and 62.92."""
    groups = [(None, [("f16", "f16")])]
    for name, sidecar in granularities(lab, "mha"):
        tuned = sidecar.replace(".lk.gguf", "-lora.lk.gguf")
        if not lab.made(tuned):
            texts = [word for path in TRAINING for word in ("-f", path)]
            lab.lowkey("train lora", "mha", "--sidecar", sidecar, "--kv", EAGER.format(""), *texts, "-c", "512", "--sequences", "420",
                       "--valid", "0.04", "--rate", "0.002", "--rank", "32", "--alpha", "32", "-o", tuned)
        groups += [(sidecar, [(name, EAGER.format(""))]), (tuned, [(f"{name}, fine-tuned", EAGER.format(""))])]
    return [text_table(lab, "palu-4", "mha", groups, TEXTS, 1024, lab.limit(8, 4))]


def table6(lab):
    """Claim: perplexity falls as groups grow: 6.81 (1 head), 6.42, 6.01, 5.88, 5.74, 5.62 (all 32 heads); baseline 5.47."""
    groups = [(None, [("f16", "f16")])]
    for size in ("1", "2", "4", "all"):
        sidecar = palu_basis(lab, "mha", size, "50%", "uniform")
        groups.append((sidecar, rows_of(f"{size} heads" if size != "1" else "1 head", LATENTS)))
    return [text_table(lab, "palu-6", "mha", groups, TEXTS, 1024, lab.limit(8, 4))]


def perplexity_by_search(lab, model, group, ctx, chunks, rates):
    groups = [(None, [("f16", "f16")])]
    for rate, rank in rates:
        groups += [(palu_basis(lab, model, group, rank, search), rows_of(f"{rate}, {search}", LATENTS))
                   for search in ("uniform", "fisher")]
    return text_table(lab, f"palu-8-{group}", model, groups, TEXTS, ctx, chunks)


def table8(lab):
    """Claim: the Fisher search lowers perplexity from 6.34 to 5.62 at 30 %, from 7.36 to 6.02 at 50 %, from 10.77 to 8.59 at 70 %."""
    rates = (("30 %", "70%"), ("50 %", "50%"), ("70 %", "30%"))
    chunks = lab.limit(8, 4)
    return [perplexity_by_search(lab, "mha", "4", 1024, chunks, rates), perplexity_by_search(lab, "mha", "all", 1024, chunks, rates),
            "SmolLM2, one group of all heads:", perplexity_by_search(lab, "smol", "all", 2048, 4, rates[1:2])]


def figure8(lab):
    """Claim (Llama-2-7B, ranks by Fisher information): values get higher ranks than keys, and the values of early layers the highest."""
    rows = []
    for model, name, rank in (("smol", "SmolLM2-135M", "50%"), ("smol", "SmolLM2-135M", "70%"), ("mha", "tiny-mha", "50%")):
        palu_basis(lab, model, "all", rank)
        layers = lab.report(model, f"fisher-all-{rank[:2]}")["layers"]
        half, whole = len(layers) // 2, max(sum(layer[side]["rank"]) for layer in layers for side in ("kpre", "v"))
        cells = []
        for side in ("kpre", "v"):
            ranks = [sum(layer[side]["rank"]) / whole for layer in layers]
            cells += [f"{sum(some) / len(some):.2f}" for some in (ranks, ranks[:half], ranks[half:])]
        rows.append([f"{name}, {rank[:2]} %", *cells])
    return [table(["model, mean rank", "K", "first half of the layers", "second half", "V", "first half of the layers", "second half"], rows)]


def keys(lab):
    """Claim: none; the paper keeps K before RoPE and whitens its rows."""
    groups = [(None, [("f16", "f16")])]
    for size, name in (("1", "each head"), ("all", "all heads")):
        for svd in ("whitened", "output"):
            sidecar = lab.basis("mha", f"keys-{svd}-{size}", "--method", "palu", "--group", size, "--rank-search", "uniform", "--svd", svd)
            groups.append((sidecar, [(f"{name}, {place} RoPE, {rank} %, `{svd}`", f"all: k=latent{rank}%{pre} v=f16")
                                     for place, pre in (("before", "(pre)"), ("after", "")) for rank in (50, 33)]))
    return [text_table(lab, "palu-keys", "mha", groups, TEXTS, 1024, lab.limit(8, 4))]


TABLES = [("table 1", table1), ("table 1, SmolLM2", table1_smol), ("table 2", table2), ("table 3", table3), ("table 4", table4),
          ("table 6", table6), ("table 8", table8), ("figure 8", figure8), ("keys", keys)]
