"""Don't Drop It, Compress It: Selective KV Quantization: table 1, figures 3 to 5."""
from .runner import NOVEL, WIKITEXT, bench_table, memory_table, task_table, text_table

TITLE = "Selective KV quantization"
TEXTS = [("WikiText", WIKITEXT), ("Emma", NOVEL)]
RECIPES = [("full", "f16"), ("compressed", "compressed"), ("selective", "selective"), ("best-4", "best-4")]


def table1(lab):
    """Claim (Llama-3.1-8B, GPU memory at 200 tokens of their unit): full 84.58, compressed 12.66, selective 41.44 GB."""
    return [memory_table(lab, "selective-memory", "smol", [kv for _, kv in RECIPES], ("1k", "2k", "4k", "8k"))]


def figure5(lab):
    """Claim: perplexity 5.56 (full), 132.08 (compressed), 5.56 (selective); ROUGE-L 0.2073, 0.1030, 0.1709."""
    options = ("--data", "data", "-c", "2048", "--limit", str(lab.limit(100, 50)))
    return [text_table(lab, "selective-5", "smol", [(None, RECIPES)], TEXTS, 2048, lab.limit(8, 2)),
            task_table(lab, "selective-5-summary", "smol", [(None, RECIPES)], [("ROUGE-L of summaries", "summary", "rougeL")], options)]


def figure4(lab):
    """Claim: tokens per second 6.75 (full), 5.53 (compressed), 4.47 (selective), because rows are dequantized before attention."""
    return [bench_table(lab, "selective-speed", "smol", [kv for _, kv in RECIPES], ("--depth", "0,2k,8k", "-p", "0", "-n", "16"))]


TABLES = [("table 1", table1), ("figure 4", figure4), ("figure 5", figure5)]
