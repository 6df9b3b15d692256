"""Effectively Compress KV Heads for LLM (Yu et al.): tables 1, 4 and 5, figure 1."""
from .runner import CALIBRATION, MODELS, NOVEL, WIKITEXT, Missing, cell, file_of, table, text_table

TITLE = "Effectively Compress KV Heads"
TEXTS = [("WikiText", WIKITEXT), ("Emma", NOVEL)]
RECIPE, V_ONLY = "all: k=latent v=latent", "all: k=f16 v=latent"


def sidecar(lab, model, rank, svd, tokens="64k"):
    return lab.basis(model, f"heads-{rank[:2]}-{svd}-{tokens}", "--method", "kvheads", "--rank", rank, "--svd", svd, tokens=tokens)


def initializations(lab, model, ranks, ctx):
    groups = [(None, [("f16", "f16")])]
    for name, rank in ranks:
        groups += [(sidecar(lab, model, rank, svd), [(f"{name}, {title}", recipe)])
                   for svd, title, recipe in (("whitened", "K and V, SVD of activations", RECIPE), ("whitened", "V, SVD of activations", V_ONLY),
                                              ("plain", "V, SVD of weights", V_ONLY))]
    return text_table(lab, "kvheads-4", model, groups, TEXTS, ctx, lab.limit(8, 4))


def table4(lab):
    """Claim (Llama-2-7B without fine-tuning, WikiText): 16 of 32 heads: SVD of activations 13.57, of weights 808; 8 heads: 195, 3,889."""
    return [initializations(lab, "mha", (("4 of 8 heads", "50%"), ("2 of 8 heads", "25%")), 1024)]


def table5(lab):
    """Claim: more calibration data does not help: 13.57 with 23 thousand samples, 13.92 with 232 thousand."""
    groups = [(sidecar(lab, "mha", "50%", "whitened", tokens), [(f"{tokens} tokens", RECIPE)]) for tokens in ("4k", "16k", "64k")]
    return [text_table(lab, "kvheads-5", "mha", groups, TEXTS, 1024, lab.limit(4, 1))]


# Of the model without RoPE: what it was trained on, which has neither of TEXTS.
TRAINING = (CALIBRATION, "data/janeausten/mansfield_park.txt", "data/janeausten/persuasion.txt", "data/tinyshakespeare/input.txt")


def exported(lab, heads, tuned):
    """The name of a plain model with fewer KV heads: bases and, if tuned, adapters are in its weights."""
    bases = lab.basis("alibi", f"heads-{heads}", "--method", "kvheads", "--group", str(8 // heads), "--type", "f32")
    sidecar, name = f"alibi-{heads}-lora.lk.gguf" if tuned else bases, f"alibi-{heads}-{'tuned' if tuned else 'heads'}"
    if tuned and not lab.made(sidecar):
        texts = [word for path in TRAINING for word in ("-f", path)]
        lab.lowkey("train lora", "alibi", "--sidecar", bases, "--kv", RECIPE + "; eager", *texts, "-c", "512", "--sequences", "420",
                   "--valid", "0.04", "--rate", "0.002", "--rank", "64", "--alpha", "64", "-o", sidecar)
    if not lab.made(f"{name}.gguf"):
        lab.run(["./lowkey", "export", "-m", file_of("alibi"), "--sidecar", sidecar, "--type", "f32", "-o", f"{name}.gguf"])
    return name


def table1_alibi(lab):
    """Claim (tables 1 and 4; BLOOMZ-7B1 has no RoPE, Llama-2-7B has): BLOOMZ-7B1 decodes 8.56 tokens/s with 32 heads, 14.41 with
    16, 23.24 with 8. Llama-2-7B has a perplexity of 5.47 on WikiText with 32 heads; 13.57 with 16 and 195 with 8 before fine-tuning,
    7.08 and 9.17 after it."""
    models = [("8", "as trained", "alibi")] + [(str(heads), "fine-tuned" if tuned else "SVD of activations", exported(lab, heads, tuned))
                                               for heads in (4, 2) for tuned in (False, True)]
    caches = ["f16", "llama.cpp:f16"]
    rows = []
    for heads, stage, model in models:
        row = [heads, stage]
        for title, path in TEXTS:
            found = lab.text(f"kvheads-plain-{model}-{title.lower()}", model, caches, path, 1024, lab.limit(8, 4))
            if not all(kv in found for kv in caches):
                raise Missing(model)
            row += [cell(found[kv]["ppl"], 2) for kv in caches]
        ours = lab.bench(f"bench-{model}", model, ["f16"], "-t", "1", "--depth", "900", "-p", "0", "-n", "100", "--repeat", "5")
        theirs = lab.llama_depth(f"llama-{model}", model, 900, 100, 5)
        rows.append(row + [f"{max(r['decode_tps'] for r in ours):.0f}", f"{theirs:.0f}"])
    return [table(["KV heads", "stage", "WikiText: perplexity, lowkey", "llama.cpp", "Emma: perplexity, lowkey", "llama.cpp",
                   "tokens/s, lowkey", "llama.cpp"], rows)]


def figure1(lab):
    """Claim (Llama-2-7B): a quarter of the dimensions keeps most of the energy, and RoPE generally lowers the rank of K."""
    rows = []
    for model, group in (("mha", "all"), ("mha", "1"), ("smol", "all"), ("qwen", "all")):
        lab.basis(model, f"singular-{group}", "--method", "palu", "--group", group, "--rank-search", "uniform")
        layers = lab.report(model, f"singular-{group}")["layers"]
        row = [f"{MODELS[model][0]}, {'each head' if group == '1' else 'all heads'}"]
        for share in ("singular_quarter", "singular_half"):
            for side in ("kpre", "k", "v"):
                values = [100 * layer[side][share] for layer in layers]
                row.append(f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        rows.append(row)
    head = [f"{share} of them: {side}" for share in ("a quarter", "half") for side in ("K before RoPE", "K after RoPE", "V")]
    return [table(["singular values, % of their sum", *head], rows)]


TABLES = [("tables 1 and 4, plain models", table1_alibi), ("table 4", table4), ("table 5", table5), ("figure 1", figure1)]
