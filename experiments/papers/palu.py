"""Palu: KV-Cache Compression with Low-Rank Projection (Chang et al.): tables 1 to 3 and 6 to 8, figure 5."""
from .runner import NOVEL, WIKITEXT, bench_table, task_table, text_table

TITLE = "Palu"
TEXTS = [("WikiText", WIKITEXT), ("Emma", NOVEL)]
ZERO_SHOT = [("OBQA", "openbookqa", "acc_norm"), ("HellaSwag", "hellaswag", "acc_norm"), ("PIQA", "piqa", "acc"),
             ("ARC-e", "arc_easy", "acc"), ("ARC-c", "arc_challenge", "acc_norm"), ("WinoGrande", "winogrande", "acc")]
NOTHING_EXACT = "all: k=latent{0}(pre){1} v=latent{0}{1}"
EXACT_ROWS = "sink 4: f16; body: k=latent{0}(pre){1} v=latent{0}{1}; window 128: f16"


def palu_basis(lab, model, group, rank, search="fisher"):
    """A sidecar of Palu. Gradients of a large model are expensive, so they are taken of fewer tokens."""
    tokens = ("--fisher-tokens", {"mha": "64k", "smol": "16k", "qwen": "4k"}[model]) if search == "fisher" else ()
    return lab.basis(model, f"{search}-{group}-{rank[:2]}", "--method", "palu", "--group", group, "--rank", rank, "--rank-search", search, *tokens)


def granularities(lab, model):
    """Sidecars of M-, G- and J-LRD at half the rank, with Fisher ranks as in the paper."""
    groups = [("J-LRD", "all")] if model == "smol" else [("J-LRD", "all"), ("G-LRD, 4 heads", "4")]
    return [(name, palu_basis(lab, model, group, "50%")) for name, group in groups + [("M-LRD", "1")]]


def perplexity_by_granularity(lab, model, ctx):
    groups = [(None, [("f16", "f16")])]
    groups += [(sidecar, [(name, NOTHING_EXACT.format("", "")), (f"{name}, 4 sinks and a window of 128", EXACT_ROWS.format("", ""))])
               for name, sidecar in granularities(lab, model)]
    return text_table(lab, "palu-1", model, groups, TEXTS, ctx, lab.limit(8, 4))


def table1(lab):
    """Claim: Llama-2-7B at 50 %: baseline 5.47, J-LRD 5.62, G-LRD 6.01, M-LRD 6.75."""
    return [perplexity_by_granularity(lab, "mha", 1024)]


def table1_smol(lab):
    """Claim: zero-shot accuracy 65.1 (baseline), 64.8 (J-LRD), 62.6 (G-LRD), 57.8 (M-LRD)."""
    groups = [(sidecar, [("f16", "f16")][:i == 0] + [(name, NOTHING_EXACT.format("", ""))])
              for i, (name, sidecar) in enumerate(granularities(lab, "smol"))]
    return [perplexity_by_granularity(lab, "smol", 2048),
            task_table(lab, "palu-1-tasks", "smol", groups, ZERO_SHOT, ("--data", "data", "--limit", str(lab.limit(200, 50))))]


def table2(lab):
    """Claim: 16 bits 5.12; Palu-30 % 5.25, -50 % 5.63; at 3 bits 5.33 and 5.77 (KVQuant 5.35, Atom 6.15); at 2 bits 5.76 and 6.41 (6.95, 117.88)."""
    ctx, chunks = 4096, lab.limit(4, 1)
    out = []
    for model in ("smol",):
        plain = [("f16", "f16")] + [(f"{name}, {bits} bits", recipe.format(bits)) for bits in (3, 2)
                                    for name, recipe in (("Atom", "all: asym{}(g64)"), ("KVQuant", "sink 1: f16; body: kvquant{}"))]
        groups = [(None, plain)]
        for rate, rank in (("30 %", "70%"), ("50 %", "50%")):
            sidecar = palu_basis(lab, model, "all", rank)
            groups.append((sidecar, [(f"Palu-{rate}, {bits} bits", NOTHING_EXACT.format("", "" if bits == 16 else f"+asym{bits}(hadamard)"))
                                     for bits in (16, 3, 2)]))
        groups.append((None, [(f"`{kv}`", kv) for kv in ("kivi-2", "best-3", "best-2")]))
        out.append(text_table(lab, "palu-2", model, groups, TEXTS, ctx, chunks))
    return out


def table3(lab):
    """Claim (LongBench, Mistral-7B): baseline 42.54, Palu-30 % 41.55, Palu-50 % 36.23, KIVI-2 and Palu-30 % at 3 bits close to the baseline."""
    sidecar = palu_basis(lab, "smol", "all", "70%")
    groups = [(sidecar, [("f16", "f16"), ("KIVI-2", "kivi-2"), ("Palu-30 %, 3 bits", NOTHING_EXACT.format("", "+asym3(hadamard)")),
                         ("best-2", "best-2")])]
    tasks = [("needle", "needle", "score"), ("RULER vt", "vt", "score"), ("RULER fwe", "fwe", "score"), ("RULER qa", "qa", "score")]
    return [task_table(lab, "palu-3", "smol", groups, tasks, ("--text", NOVEL, "--data", "data", "-c", "2048", "--limit", str(lab.limit(100, 50))))]


def table6(lab):
    """Claim: perplexity falls as groups grow: 6.81 (1 head), 6.42, 6.01, 5.88, 5.74, 5.62 (all 32 heads); baseline 5.47."""
    groups = [(None, [("f16", "f16")])]
    for size in ("1", "2", "4", "all"):
        sidecar = palu_basis(lab, "mha", size, "50%", "uniform")
        groups.append((sidecar, [(f"{size} heads" if size != "1" else "1 head", NOTHING_EXACT.format("", ""))]))
    return [text_table(lab, "palu-6", "mha", groups, TEXTS, 1024, lab.limit(8, 4))]


def table7(lab):
    """Claim: the Hadamard transform is worth 0.19 to 0.22 of perplexity at 3 bits and 3.7 to 4.2 at 2 bits."""
    groups = []
    for rate, rank in (("30 %", "70%"), ("50 %", "50%")):
        sidecar = palu_basis(lab, "smol", "all", rank)
        rows = [(f"Palu-{rate}, f16", NOTHING_EXACT.format("", ""))]
        for bits in (3, 2):
            rows += [(f"Palu-{rate}, {bits} bits without Hadamard", NOTHING_EXACT.format("", f"+asym{bits}")),
                     (f"Palu-{rate}, {bits} bits with Hadamard", NOTHING_EXACT.format("", f"+asym{bits}(hadamard)"))]
        groups.append((sidecar, rows))
    return [text_table(lab, "palu-7", "smol", groups, TEXTS, 4096, lab.limit(4, 1))]


def perplexity_by_search(lab, model, group, ctx):
    groups = [(None, [("f16", "f16")])]
    for rate, rank in (("30 %", "70%"), ("50 %", "50%"), ("70 %", "30%")):
        groups += [(palu_basis(lab, model, group, rank, search), [(f"{rate}, {search}", NOTHING_EXACT.format("", ""))])
                   for search in ("uniform", "fisher")]
    return text_table(lab, f"palu-8-{group}", model, groups, TEXTS, ctx, lab.limit(8, 4))


def table8(lab):
    """Claim: the Fisher search lowers perplexity from 6.34 to 5.62 at 30 %, from 7.36 to 6.02 at 50 %, from 10.77 to 8.59 at 70 %."""
    return [perplexity_by_search(lab, "mha", "4", 1024), perplexity_by_search(lab, "mha", "all", 1024)]


def table8_smol(lab):
    """Claim: as table 8."""
    return [perplexity_by_search(lab, "smol", "all", 2048)]


def figure5(lab):
    """Claim: attention at 64k is 1.89 times as fast as f16 with RoPE, 2.91 times with quantization; end to end 1.7 times."""
    sidecar = palu_basis(lab, "smol", "all", "50%")
    depths = lab.limit("0,4k,16k,64k", "0,4k,16k")
    return [bench_table(lab, "palu-speed", "smol", ["f16", "palu", "best-2"], ("--depth", depths, "-p", "0", "-n", "16"), sidecar)]


def keys_before_rope(lab, model, sizes, tokens, ctx, chunks):
    """KL of K alone at equal ranks: before RoPE with both kinds of basis, and after RoPE."""
    groups = [(None, [("f16", "f16")])]
    for size in sizes:
        name = {"1": "each head", "all": "all heads"}.get(size, f"{size} heads")
        for svd in ("whitened", "output"):
            sidecar = lab.basis(model, f"keys-{svd}-{size}", "--method", "palu", "--group", size, "--rank-search", "uniform", "--svd", svd, tokens=tokens)
            groups.append((sidecar, [(f"{name}, {place} RoPE, {rank} %, `{svd}`", f"all: k=latent{rank}%{pre} v=f16")
                                     for place, pre in (("before", "(pre)"), ("after", "")) for rank in (50, 33)]))
    return [text_table(lab, "palu-keys", model, groups, TEXTS, ctx, chunks)]


def keys(lab):
    """Claim: none; the paper keeps K before RoPE and whitens its rows."""
    return keys_before_rope(lab, "mha", ("1", "all"), "64k", 1024, lab.limit(8, 4))


def keys_smol(lab):
    """Claim: as table keys."""
    return keys_before_rope(lab, "smol", ("1", "all"), "16k", 2048, 2)


TABLES = [("table 1", table1), ("table 1, SmolLM2", table1_smol), ("table 2", table2), ("table 3", table3), ("table 6", table6),
          ("table 7", table7), ("table 8", table8), ("table 8, SmolLM2", table8_smol), ("figure 5", figure5), ("keys", keys),
          ("keys, SmolLM2", keys_smol)]
