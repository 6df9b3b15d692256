"""All methods next to each other: latency by length, throughput by batch, memory by length."""
from . import kvheads, less, palu, tale
from .runner import WIKITEXT, batch_table, table

TITLE = "All methods"
MODEL = "smol"


def methods(lab):
    """[(label, recipe, sidecar or None)]. Those that evict keep 256 rows, as the presets do."""
    best = lab.basis(MODEL, "best", "--method", "palu", "--mean", "--svd", "output", "--rank-search", "uniform")
    return [("f16", "f16", None), ("`palu`", "palu", palu.palu_basis(lab, MODEL, "all", "50%")), ("`tale`", "tale", tale.bases(lab)),
            ("`h2o`", "h2o", None), ("h2o, LESS", "keep 128 by h2o: f16; window 128: f16; absorb less", less.main_networks(lab)),
            ("KV heads, 1 of 3", kvheads.RECIPE, kvheads.sidecar(lab, MODEL, "33%", "whitened")),
            ("`best-1.9`", "best-1.9", best), ("`best-2`", "best-2", None), ("`best-3`", "best-3", None)]


def latency(lab):
    """Decoding by length, and its speed in multiples of f16 in the same run."""
    depths, rows = lab.limit("4k,16k,64k", "4k,16k"), []
    for i, (label, kv, sidecar) in enumerate(methods(lab)[1:]):
        found = lab.bench(f"methods-latency-{i}", MODEL, ["f16", kv], "--depth", depths, "-p", "0", "-n", "16", sidecar=sidecar)
        lengths = sorted({r["depth"] for r in found})
        full, own = ([next(r["decode_tps"] for r in found if r["depth"] == n and (r["kv"] == "f16") == is_full) for n in lengths]
                     for is_full in (True, False))
        rows.append([label] + [f"{1e3 / y:.1f} ({y / x:.2f}x)" for x, y in zip(full, own)])
    return [table(["cache"] + [f"{n:,} tokens, ms per token (speed of f16)" for n in lengths], rows)]


def throughput(lab):
    """Claim (LESS, table 6; Llama 2 7B, 2,048 tokens of prompt and 2,048 generated): 24 sequences: 421 tokens/s with the full cache, 628 with more rows, 517 with LESS; 64: out of memory, 819, 699."""
    some = less.recipes(26)
    some = [("full", "f16", None), (*some[1], None), (*some[2], less.speed_networks(lab)), ("`best-2`", "best-2", None), ("`best-3`", "best-3", None)]
    return [batch_table(lab, "methods-batch", MODEL, some, 1024, 512, (4, 16), WIKITEXT)]


def memory(lab):
    """MiB of a session; bits per value without and with the sidecar of one session."""
    rows, lengths = [], ("4k", "16k", "64k")
    for i, (label, kv, sidecar) in enumerate(methods(lab)):
        found = sorted(lab.plan(f"methods-memory-{i}", MODEL, [kv], lengths, sidecar=sidecar), key=lambda plan: plan["n_tok"])
        rows.append([label] + [f"{p['cache_bytes'] / 2**20:.1f} ({p['bits_per_value']:.2f}, {p['bits_with_sidecar']:.2f})" for p in found])
    return [table(["cache"] + [f"{p['n_tok']:,} tokens" for p in found], rows)]


TABLES = [("latency", latency), ("throughput", throughput), ("memory", memory)]
