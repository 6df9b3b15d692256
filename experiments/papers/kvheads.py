"""Effectively Compress KV Heads for LLM (Yu et al.): the initialization rows of table 4, table 5, figure 1."""
from .runner import NOVEL, WIKITEXT, table, text_table

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


def figure1(lab):
    """Claim (Llama-2-7B): a quarter of the dimensions keeps most of the energy, and RoPE generally lowers the rank of K."""
    name = "heads-50-whitened-64k"
    sidecar(lab, "mha", "50%", "whitened")
    layers = lab.report("mha", name)["layers"]
    return [table(["layer", "K after RoPE", "V"], [[str(i)] + [f"{100 * (1 - layer[side]['lost']):.1f} %" for side in ("k", "v")]
                                                  for i, layer in enumerate(layers)])]


TABLES = [("table 4", table4), ("table 5", table5), ("figure 1", figure1)]
