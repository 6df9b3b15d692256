"""Effectively Compress KV Heads for LLM (Yu et al.): the initialization rows of table 4, table 5, figure 1."""
from .runner import NOVEL, WIKITEXT, table, text_table

TITLE = "Effectively Compress KV Heads"
TEXTS = [("WikiText", WIKITEXT), ("Emma", NOVEL)]
RECIPE = "all: k=latent v=latent"


def sidecar(lab, model, rank, svd, tokens="64k"):
    return lab.basis(model, f"heads-{rank[:2]}-{svd}-{tokens}", "--method", "kvheads", "--rank", rank, "--svd", svd, tokens=tokens)


def table4(lab):
    """Claim (Llama-2-7B without fine-tuning, WikiText): 16 of 32 heads: SVD of activations 13.57, of weights 808, mean 1,079; 8 heads: 195, 3,889, 4,114."""
    out = []
    for model, ranks in (("mha", (("4 of 8 heads", "50%"), ("2 of 8 heads", "25%"))), ("smol", (("1 of 3 heads", "33%"),))):
        groups = [(None, [("f16", "f16")])]
        for name, rank in ranks:
            groups += [(sidecar(lab, model, rank, svd), [(f"{name}, {title}", RECIPE)])
                       for svd, title in (("whitened", "SVD of activations"), ("plain", "SVD of weights, V only"), ("mean-pool", "mean of heads, V only"))]
        out.append(text_table(lab, "kvheads-4", model, groups, TEXTS, 1024 if model == "mha" else 2048, lab.limit(4, 1)))
    return out


def table5(lab):
    """Claim: more calibration data does not help: 13.57 with 23 thousand samples, 13.92 with 232 thousand."""
    groups = [(sidecar(lab, "mha", "50%", "whitened", tokens), [(f"{tokens} tokens", RECIPE)]) for tokens in ("4k", "16k", "64k")]
    return [text_table(lab, "kvheads-5", "mha", groups, TEXTS, 1024, lab.limit(4, 1))]


def figure1(lab):
    """Claim (Llama-2-7B): a quarter of the dimensions keeps most of the energy, and RoPE generally lowers the rank of K."""
    name = "heads-50-whitened-64k"
    sidecar(lab, "mha", "50%", "whitened")
    layers = lab.report("mha", name)["layers"]
    return [table(["layer", "K after RoPE", "V"], [[str(i)] + [f"{100 * (1 - layer[side]):.1f} %" for side in ("k", "v")]
                                                  for i, layer in enumerate(layers)])]


TABLES = [("table 4", table4), ("table 5", table5), ("figure 1", figure1)]
