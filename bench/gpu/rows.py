"""The rows of scripts/bench-gpu: what each measures, at which points, next to what, and what a paper claims.

A point is a shape, a batch, a number of rows (tokens in the cache) and of query tokens. A row is measured by contestants at
its points. Ours are jobs of bench/gpu/kernels.cpp, others of rivals_torch.py, rivals_ggml.cpp and the programs.
A job is one line, "attend heads=32/8 d=128 batch=8 rows=32768 queries=1 segments=rot3/rot2:32768"; the answer has the
microseconds of one layer.
"""
from dataclasses import dataclass, field, replace

K = 1024


@dataclass(frozen=True)
class Shape:
    name: str
    heads: int
    kv_heads: int
    d: int = 128

    def text(self):
        return f"{self.heads}/{self.kv_heads} × {self.d}"


LLAMA_8B = Shape("Llama-3-8B", 32, 8)
LLAMA_7B = Shape("Llama-2-7B", 32, 32)
LLAMA_13B = Shape("Llama-2-13B", 40, 40)
QWEN_30B = Shape("Qwen3-30B-A3B", 32, 4)
QWEN_05B = Shape("Qwen2.5-0.5B", 14, 2, 64)
SMOL_135M = Shape("SmolLM2-135M", 9, 3, 64)


@dataclass(frozen=True)
class Point:
    shape: Shape
    batch: int
    rows: int
    queries: int = 1

    def words(self):
        s = self.shape
        return f"heads={s.heads}/{s.kv_heads} d={s.d} batch={self.batch} rows={self.rows} queries={self.queries}"

    def text(self):
        rows = f"{self.rows // K}k" if self.rows % K == 0 and self.rows < K * K else f"{self.rows // K // K}M" if self.rows % (K * K) == 0 else str(self.rows)
        return f"{self.shape.text()}, b{self.batch}, {rows}" + (f", {self.queries} tokens" if self.queries > 1 else "")

    def small(self, kv_heads=1):
        """The same kind of point at a size for the emulated kernels: 650 rows have whole chunks, a tile and a tail."""
        group = self.shape.heads // self.shape.kv_heads
        n = min(self.shape.kv_heads, kv_heads)
        return replace(self, shape=replace(self.shape, heads=group * n, kv_heads=n), batch=min(self.batch, 2), rows=min(self.rows, 650))


# ---- contestants ----

def levels_of(cache, n):
    """The segments, from the oldest row to the newest, into which a recipe divides n rows: [(codings of K/V, rows)]."""
    if "/" in cache:
        return [(cache, n)]
    newest = n % 32 + (32 if n >= 128 else 0)  # exact rows that wait until they fill a tile
    if cache == "best-4":
        levels = [("f16/f16", 4), ("rot4/rot4", 0), ("f16/f16", 64 + newest)]
    elif cache == "best-3":
        recent = n // 5 // 32 * 32
        levels = [("f16/f16", 4), ("rot3/rot2", 0), ("rot4/rot4", recent), ("rot8/rot8", 64), ("f16/f16", newest)]
    else:
        raise ValueError(cache)
    body = n - sum(rows for _, rows in levels)
    return [(name, body if i == 1 else rows) for i, (name, rows) in enumerate(levels) if i == 1 or rows]


@dataclass(frozen=True)
class Contestant:
    """One column of a table: a program, and the job that it does at a point."""
    name: str
    program: str  # kernels, torch, ggml, model, plan
    job: str      # with {words}, or {segments} for ours
    cache: str = ""

    def line(self, p):
        segments = ",".join(f"{name}:{rows}" for name, rows in levels_of(self.cache, p.rows)) if self.cache else ""
        return self.job.format(words=p.words(), segments=segments)


def ours(name, cache):
    return Contestant(name, "kernels", "attend {words} segments={segments}", cache)


def latents(name, options):
    """Attention over latents. Ranks are of a group of 4 KV heads unless group= says otherwise."""
    return Contestant(name, "kernels", "latent {words} " + options)


def torch(name, what):
    return Contestant(name, "torch", f"attend {{words}} with={what}")


def ggml(kind):
    return Contestant(f"ggml {kind}", "ggml", f"attend {{words}} type={kind}")


def model(name, options):
    """A step of a whole model of random weights, by bench/batch or libllama; rows and batch are the point's."""
    return Contestant(name, "model", f"step {{words}} {options}")


K32, K44 = ours("K3/V2", "rot3/rot2"), ours("K4/V4", "rot4/rot4")
BEST_3, BEST_4 = ours("best-3", "best-3"), ours("best-4", "best-4")
CUDNN, FA3, FA3_FP8 = torch("cuDNN f16", "cudnn"), torch("FA3 bf16", "fa3"), torch("FA3 fp8", "fa3_fp8")
FLASH, UNFUSED = torch("torch flash f16", "flash"), torch("torch unfused f16", "unfused")
EXL_4, FLASHINFER = torch("exllamav3 4/4", "exllamav3_4"), torch("FlashInfer f16", "flashinfer")
GGML_F16, GGML_Q8, GGML_Q4 = ggml("f16"), ggml("q8_0"), ggml("q4_0")
F16 = ("cuDNN f16", "FA3 bf16", "torch flash f16", "ggml f16", "FlashInfer f16")  # "best f16" is the fastest of them
RIVALS = [CUDNN, FA3, FLASH, FA3_FP8, GGML_F16, GGML_Q8, GGML_Q4, EXL_4, FLASHINFER]
FEW = [CUDNN, FA3, FLASH, FA3_FP8, GGML_F16, GGML_Q4]


# ---- rows ----

@dataclass
class Row:
    name: str
    title: str
    points: list
    contestants: list
    against: tuple = ()      # ratios: the fastest of these divided by ours
    ratio_of: tuple = ()     # whose ratios
    budget: int = 10         # seconds on the card
    goal: dict = field(default_factory=dict)   # {(batch, rows, contestant): least ratio}
    paper: dict = field(default_factory=dict)  # {(rows, contestant): what the paper has}
    paper_of: str = ""       # the paper and its card
    note: str = ""
    default: bool = True     # part of a run without --only


def grid(shape, batches, lengths, queries=(1,)):
    return [Point(shape, b, n, q) for b in batches for n in lengths for q in queries]


def goals(contestant, **at):
    """goals("K4/V4", b1_64k=2.6): the least ratio to the best f16 kernel at batch 1, 64k rows."""
    found = {}
    for key, ratio in at.items():
        batch, rows = key[1:].split("_")
        found[(int(batch), int(rows[:-1]) * K, contestant)] = ratio
    return found


PALU = dict(against=("torch unfused f16",), paper_of="Palu, RTX 4090, Llama-2-7B, batch 1, HuggingFace's attention in f16 = 1")
FIVE = [4 * K, 8 * K, 16 * K, 32 * K, 64 * K]
# Palu's setting at half of the size: K keeps 25 % of its components and V 75 %.
PALU_16 = latents("K, V latents f16", "k=f16 v=f16 k_rank=128 v_rank=384 rope=before")
PALU_V4 = latents("K f16, V 4 bits", "k=f16 v=rot4 k_rank=128 v_rank=384 rope=before")
PALU_44 = latents("K, V 4 bits", "k=rot4 v=rot4 k_rank=128 v_rank=384 rope=before")
PALU_FOLD = latents("K, V 4 bits, fold", "k=rot4 v=rot4 k_rank=128 v_rank=384 rope=before fold=1")
PALU_34 = latents("K 3, V 4 bits, fold", "k=rot3 v=rot4 k_rank=128 v_rank=384 rope=before fold=1")
KIVI_4 = ours("kivi-4", "kivi4/kivi4")
BEHIND_16 = latents("latents f16", "k=f16 v=f16 k_rank=256 v_rank=256 rope=after")
BEHIND_4 = latents("latents 4 bits", "k=rot4 v=rot4 k_rank=256 v_rank=256 rope=after")
TALE_16 = latents("V latents, f16", "k=rows v=f16 v_rank=256 rope=after")
PALU_LIKE = latents("K, V reconstructed, f16", "k=f16 v=f16 k_rank=256 v_rank=256 rope=before")

ROWS = [
    Row("card", "bandwidth of the card and the time of an empty launch", [Point(LLAMA_8B, 1, 0)],
        [Contestant(n, "kernels", f"card what={w}") for n, w in
         (("memcpy", "memcpy"), ("copy kernel", "copy"), ("read only", "read"), ("empty launch", "empty"))], budget=6),
    Row("check", "all kernels compared with double precision and with lib/codec, before anything is timed", [Point(LLAMA_8B, 1, 650)],
        [Contestant("check", "kernels", "check")], budget=25, note="a failure ends the run"),
    Row("attend-8b", "attention of one layer, one new token per sequence", grid(LLAMA_8B, (1, 8, 32), (8 * K, 32 * K, 64 * K, 128 * K)),
        [K44, K32, BEST_4, BEST_3] + RIVALS, F16, ("K4/V4", "K3/V2", "best-4", "best-3"), 60,
        {**goals("K4/V4", b1_8k=1.4, b1_32k=2.2, b1_64k=2.6, b1_128k=3.0, b8_32k=3.2, b8_64k=3.2, b8_128k=3.2, b32_32k=3.4),
         **goals("K3/V2", b1_8k=1.8, b1_32k=2.9, b1_64k=3.3, b1_128k=4.2, b8_32k=4.6, b8_64k=4.6, b8_128k=4.6, b32_32k=5.0),
         **goals("best-4", b1_64k=2.34, b8_32k=2.88, b32_32k=2.88), **goals("best-3", b8_32k=4.14, b32_32k=4.14)}),
    Row("levels", "best-3 with all of its levels in one launch, next to its body alone", grid(LLAMA_8B, (1, 8), (8 * K, 32 * K, 64 * K, 128 * K)),
        [K32, BEST_3], ("K3/V2",), ("best-3",), 10, goals("best-3", b1_32k=0.87), note="at most 15 % more at batch 1 and 32k"),
    Row("fixed", "what a launch costs at batch 1 with one chunk of rows", [Point(LLAMA_8B, 1, 128)],
        [Contestant("empty launch", "kernels", "card what=empty"), K44, K32], budget=3, note="goal: 5 µs"),
    Row("latents", "low-rank latents of groups of 4 KV heads", grid(LLAMA_7B, (1, 8), (8 * K, 16 * K, 64 * K)),
        [PALU_44, PALU_FOLD, latents("even, fold", "k=rot4 v=rot4 k_rank=256 v_rank=256 rope=before fold=1"), BEHIND_4, CUDNN, FA3, FLASH, UNFUSED],
        F16, ("K, V 4 bits", "K, V 4 bits, fold", "even, fold", "latents 4 bits"), 25,
        {**goals("K, V 4 bits", b1_64k=1.8, b8_8k=1.8, b8_16k=1.8, b8_64k=1.8),
         **goals("K, V 4 bits, fold", b1_64k=3.0, b8_8k=3.0, b8_16k=3.0, b8_64k=3.0),
         **goals("even, fold", b1_64k=2.3, b8_64k=2.3), **goals("latents 4 bits", b8_8k=4.5, b8_16k=4.5, b8_64k=4.5)}),
    Row("latents-gqa", "the same with 4 query heads per KV head", grid(LLAMA_8B, (1, 8), (16 * K, 64 * K)),
        [latents("K r128, V r256", "k=rot4 v=rot4 k_rank=128 v_rank=256 rope=before"),
         latents("the same, fold", "k=rot4 v=rot4 k_rank=128 v_rank=256 rope=before fold=1"), BEHIND_4, CUDNN, FA3, FLASH],
        F16, ("K r128, V r256", "the same, fold", "latents 4 bits"), 12,
        {**goals("K r128, V r256", b1_64k=1.6, b8_16k=1.6), **goals("the same, fold", b1_64k=2.5, b8_16k=2.5)}),
    Row("drafts", "several query tokens of one sequence", grid(LLAMA_8B, (1, 8), (32 * K,), (1, 2, 4, 8)), [K44, K32, CUDNN, FA3],
        F16, ("K4/V4", "K3/V2"), 10, note="2 tokens: at most 15 % more than 1 (K3/V2, batch 8)"),
    Row("moves", "encoding and aging, all layers of a step in one launch", [Point(LLAMA_8B, 1, 32), Point(LLAMA_8B, 1, 512)],
        [Contestant(f"{n}, {layers} layers", "kernels", f"{kind} {{words}} layers={layers} {options}")
         for n, kind, options in (("encode K3/V2", "encode", "k=rot3 v=rot2"), ("encode K4/V4", "encode", "k=rot4 v=rot4"),
                                  ("age K4/V4 to K3/V2", "age", "from=rot4/rot4 k=rot3 v=rot2")) for layers in (1, 32)], budget=8),
    Row("attend-7b", "attention of one layer, 32 KV heads", grid(LLAMA_7B, (1, 8, 32), (8 * K, 32 * K, 64 * K)),
        [K44, K32, BEST_3] + FEW, F16, ("K4/V4", "K3/V2", "best-3"), 20),
    Row("attend-13b", "attention of one layer, 40 KV heads", grid(LLAMA_13B, (1, 4), (8 * K, 32 * K)), [K44, K32] + FEW, F16, ("K4/V4", "K3/V2"), 8),
    Row("attend-32-4", "attention of one layer, 8 query heads per KV head", grid(QWEN_30B, (1, 8, 32), (8 * K, 32 * K)), [K44, K32] + FEW,
        F16, ("K4/V4", "K3/V2"), 10),
    Row("attend-14-2", "attention of one layer, 7 query heads per KV head of 64 channels", grid(QWEN_05B, (1, 8, 32), (8 * K, 32 * K, 128 * K)),
        [K44, K32] + FEW, F16, ("K4/V4", "K3/V2"), 10),

    Row("splits", "numbers of blocks that share the rows of a KV head, next to what the module plans", grid(LLAMA_8B, (1, 8), (8 * K, 32 * K, 128 * K)),
        [BEST_4] + [Contestant(f"{n} splits", "kernels", f"attend {{words}} segments={{segments}} splits={n}", "best-4") for n in (1, 2, 4, 8, 16, 32, 64)],
        budget=15, default=False),

    # The papers' tables and figures. Ratios are to what the paper compares with; the best f16 kernel stands next to it.
    Row("palu-f5a", "Palu, figure 5a: attention module with RoPE", grid(LLAMA_7B, (1,), FIVE),
        [PALU_16, PALU_V4, PALU_34, PALU_FOLD, KIVI_4, UNFUSED, CUDNN, FA3], ratio_of=("K, V latents f16", "K f16, V 4 bits", "K 3, V 4 bits, fold", "K, V 4 bits, fold", "kivi-4"),
        budget=15, paper={(64 * K, "K, V latents f16"): "1.89", (4 * K, "K, V latents f16"): "about 1", (64 * K, "K f16, V 4 bits"): "2.91", (64 * K, "kivi-4"): "1.89"}, **PALU),
    Row("palu-f5b", "Palu, figure 5b: attention module without RoPE", grid(LLAMA_7B, (1,), FIVE), [BEHIND_16, BEHIND_4, UNFUSED, CUDNN, FA3],
        ratio_of=("latents f16", "latents 4 bits"), budget=10, note="the projections of queries and results, which are weights', are not in ours",
        paper={(64 * K, "latents f16"): "2.20", (64 * K, "latents 4 bits"): "6.17"}, **PALU),
    Row("palu-f5cd", "Palu, figures 5c and 5d: a step of the whole model", grid(LLAMA_7B, (1,), FIVE),
        [model("f16", "kv=f16 shape=llama2-7b"), model("palu", "kv=palu shape=llama2-7b"), model("latents, no RoPE", "kv=all:_k=latent50%+rot4_v=latent50%+rot4 shape=llama2-7b"),
         model("kivi-4", "kv=kivi-4 shape=llama2-7b")], ("f16",), ("palu", "latents, no RoPE", "kivi-4"), 150,
        paper={(32 * K, "palu"): "1.71 (f16 latents)", (64 * K, "palu"): "2.59 (4 bits)", (32 * K, "latents, no RoPE"): "2.05 (f16 latents)",
               (64 * K, "latents, no RoPE"): "5.53 (4 bits)", (32 * K, "kivi-4"): "1.78 with, 1.81 without RoPE"}, paper_of=PALU["paper_of"], default=False),
    Row("palu-f6", "Palu, figure 6: scores alone, by size of the group", grid(LLAMA_7B, (1,), FIVE),
        [Contestant(f"group of {g}", "kernels", f"score {{words}} k=rot4 k_rank={32 * g} group={g} rope=before") for g in (1, 4, 32)] +
        [Contestant("group of 4, fold", "kernels", "score {words} k=rot4 k_rank=128 group=4 rope=before fold=1"), torch("GEMV f16", "gemv")],
        ("GEMV f16",), ("group of 1", "group of 4", "group of 4, fold", "group of 32"), 12,
        paper={(16 * K, "group of 1"): "3.56", (16 * K, "group of 4"): "1.95", (16 * K, "group of 32"): "below 1"},
        paper_of=PALU["paper_of"] + "; latents in f16", note="ours are latents in 4 bits, and add the values of 128 components in 2 bits"),
    Row("palu-t9", "Palu, table 9: prefill of one decoder block", grid(LLAMA_7B, (1,), (32 * K, 64 * K, 128 * K)),
        [model("block", "prefill=1 layers=1 kv=palu shape=llama2-7b"), model("block, best-4", "prefill=1 layers=1 kv=best-4 shape=llama2-7b")],
        budget=60, paper={(32 * K, "block"): "0.231 s", (64 * K, "block"): "0.65 s", (128 * K, "block"): "1.93 s"}, paper_of="Palu, card not named, Llama-2-7B", default=False),
    Row("tale-f2", "TALE, figure 2: latency of attention, 32 KV heads", grid(LLAMA_7B, (1,), (512 * K, 1024 * K, 2048 * K)),
        [TALE_16, PALU_LIKE, UNFUSED, CUDNN], ("torch unfused f16",), ("V latents, f16", "K, V reconstructed, f16"), 20,
        paper={(2048 * K, "V latents, f16"): "about 2 (plot)", (2048 * K, "K, V reconstructed, f16"): "about 0.5 (plot)"},
        paper_of="TALE, H100 80 GB, Transformers' eager attention = 1, α = 0, p = 0.1, r0 = 50 %, no quantization"),
    Row("tale-f3", "TALE, figure 3: latency of attention, 8 KV heads", grid(LLAMA_8B, (1,), (128 * K, 512 * K, 2048 * K, 4096 * K)),
        [TALE_16, UNFUSED, CUDNN], ("torch unfused f16",), ("V latents, f16",), 20,
        paper={(2048 * K, "V latents, f16"): "about 2 (plot)", (4096 * K, "V latents, f16"): "f16 out of memory"}, paper_of="TALE, H100 80 GB, Llama-3.1-8B, the same"),
    Row("tale-f4", "TALE, figure 4: one module next to FlashAttention-2", grid(LLAMA_7B, (1, 8, 32), (4 * K, 16 * K)), [TALE_16, FLASH], ("torch flash f16",), ("V latents, f16",), 10,
        paper={(16 * K, "V latents, f16"): "above 1 from larger batches on (plot)"}, paper_of="TALE, H100, FlashAttention-2 = 1, no quantization"),
    Row("tale-f5", "TALE, figure 5: throughput with the largest batch that fits", [Point(LLAMA_7B, 1, 4 * K)],
        [model("f16", "kv=f16 batch=fit shape=llama2-7b"), model("tale", "kv=tale batch=fit shape=llama2-7b"), model("best-3", "kv=best-3 batch=fit shape=llama2-7b")],
        ("f16",), ("tale", "best-3"), 120, paper={(4 * K, "tale"): "above FlashAttention (plot)"}, paper_of="TALE, H100, GPT-fast, Llama-2-7B", default=False),
    Row("tale-f6", "TALE, figure 6: the longest context in 80 GB", [Point(LLAMA_8B, 1, 0)],
        [Contestant(kv, "plan", f"fit shape=llama3-8b kv={kv} gib=74.5") for kv in ("f16", "tale", "best-3")], ("f16",), ("tale", "best-3"), 20,
        paper={(0, "tale"): "1.5 times FlashAttention's"}, paper_of="TALE, H100 80 GB, Llama-3.1-8B-Instruct", note="computed; in tokens, not µs", default=False),
    Row("less-t6", "LESS, table 6: prompt and generation together", [Point(LLAMA_7B, 24, 2048), Point(LLAMA_7B, 64, 2048), Point(LLAMA_13B, 4, 5000)],
        [model("f16", "generate=1 kv=f16"), model("h2o", "generate=1 kv=keep_2.5%_by_h2o:_f16;_window_2.5%:_f16"),
         model("less", "generate=1 kv=keep_2.5%_by_h2o:_f16;_window_2.5%:_f16;_absorb_less")], ("f16",), ("h2o", "less"), 225,
        paper={(2048, "f16"): "116.7 s at batch 24, out of memory at 64", (2048, "h2o"): "78.3 s at batch 24, 819.2 tokens/s at 64",
               (2048, "less"): "95.1 s at batch 24, 699.2 tokens/s at 64", (5000, "f16"): "257.3 s", (5000, "h2o"): "185.2 s", (5000, "less"): "204.7 s"},
        paper_of="LESS, A100 80 GB, f16, 5 % of H2O, as many new tokens as the prompt has", default=False),
    Row("less-t8", "LESS, table 8: what the parts cost", [Point(LLAMA_7B, 64, 512)],
        [Contestant(part, "kernels", f"{job} {{words}}") for part, job in
         (("attention", "attend segments=f16/f16:51"), ("kernels", "less part=features state=8"),
          ("synthesis", "less part=read state=8"), ("update", "less part=update state=8"))], budget=8,
        note="kernels: the features of a key; synthesis: the features of queries and what they read; eviction (4.39 in the paper) is chosen on the CPU",
        paper={(512, "attention"): "23.61", (512, "kernels"): "0.87", (512, "synthesis"): "1.35", (512, "update"): "1.51"},
        paper_of="LESS, A100 80 GB, Llama-2-7B, 512 + 512 tokens, batch 64; no unit is given"),
    Row("kvheads-t1", "KV heads, table 1: BLOOMZ-7B1 with fewer KV heads, the 2,050th token", [Point(Shape("BLOOMZ-7B1", 32, n), 1, 2049) for n in (32, 16, 8, 4)],
        [model("plain GGUF", "kv=f16 shape=bloomz-7b"), model("best-4", "kv=best-4 shape=bloomz-7b")], budget=60,
        paper={(2049, "plain GGUF"): "8.56, 14.41, 23.24, 34.78 tokens/s"}, paper_of="KV heads, A100 80 GB", default=False),
    Row("kvheads-t2", "KV heads, table 2: Llama-2-7B and 13B with fewer KV heads, the 2,050th token",
        [Point(Shape("Llama-2-7B", 32, n), 1, 2049) for n in (32, 16, 8)] + [Point(Shape("Llama-2-13B", 40, n), 1, 2049) for n in (40, 20, 10)],
        [model("plain GGUF", "kv=f16"), model("best-4", "kv=best-4")], budget=90,
        paper={(2049, "plain GGUF"): "7B: 8.05, 13.41, 20.81; 13B: 5.04, 8.60, 13.93 tokens/s"}, paper_of="KV heads, A100 80 GB", default=False),
    Row("selective", "Selective: tokens per second of the full cache, of sinks and a window, of 8 bits", [Point(LLAMA_8B, 1, 400)],
        [model(kv, f"kv={kv} shape=llama3-8b") for kv in ("f16", "compressed", "selective")], ("f16",), ("compressed", "selective"), 40,
        paper={(400, "f16"): "6.75 tokens/s", (400, "compressed"): "5.53 (0.82)", (400, "selective"): "4.47 (0.66)"}, paper_of="Selective, A100 80 GB, GPT-fast, Llama-3.1-8B", default=False),

    # Whole models.
    Row("model-8b", "a decoding step of Llama-3-8B's shape, 4-bit random weights",
        [Point(LLAMA_8B, b, n * K) for b, n in ((1, 64), (8, 32), (1, 128), (1, 8), (32, 8), (32, 32), (1, 32), (8, 8), (8, 128), (8, 64), (32, 64), (32, 128))],
        [model(kv, f"kv={kv} shape=llama3-8b batches=1,8,32") for kv in ("best-4", "best-3")] +
        [model(f"llama.cpp {t}", f"llama={t} shape=llama3-8b batches=1,8,32") for t in ("f16", "q8_0", "q4_0")] +
        [model("f16", "kv=f16 shape=llama3-8b batches=1,8,32")],
        ("llama.cpp f16", "llama.cpp q8_0", "llama.cpp q4_0"), ("best-4", "best-3"), 225,
        {**goals("best-4", b1_64k=1.5, b8_32k=2.5), **goals("best-3", b1_64k=1.5, b8_32k=2.5)}, note="one process measures all batches of a cache and a length", default=False),
    Row("prefill-8b", "a prompt of Llama-3-8B's shape, 4-bit random weights, and the time to its first token", grid(LLAMA_8B, (1,), (2 * K, 8 * K, 32 * K)),
        [model(kv, f"prefill=1 kv={kv} shape=llama3-8b") for kv in ("best-4", "best-3", "f16")] +
        [model(f"llama.cpp {t}", f"prefill=1 llama={t} shape=llama3-8b") for t in ("f16", "q8_0")],
        ("llama.cpp f16", "llama.cpp q8_0"), ("best-4", "best-3", "f16"), 150, default=False),
    Row("same-text", "real models, f32 weights: the same greedy text on CPU and card, KL of best-3, a session saved on one and continued on the other",
        [Point(SMOL_135M, 1, 2048)], [Contestant(name, "model", f"same-text model={name}") for name in ("SmolLM2", "Qwen2.5")], budget=120, default=False),
    Row("memory", "what fits in 24 and 80 GB: the longest context of Llama-3-8B's shape, 4-bit weights", [Point(LLAMA_8B, b, 0) for b in (1, 8, 32)],
        [Contestant(f"{kv}, {gb} GB", "plan", f"fit {{words}} shape=llama3-8b kv={kv} gib={gib}") for gb, gib in ((24, 22.35), (80, 74.5)) for kv in ("f16", "best-4", "best-3")] +
        [Contestant(f"llama.cpp {t}, {gb} GB", "plan", f"fit {{words}} shape=llama3-8b llama={t} gib={gib}") for gb, gib in ((24, 22.35), (80, 74.5)) for t in ("f16", "q4_0")],
        budget=30, note="computed; in tokens, not µs", default=False),
    Row("sanitizer", "compute-sanitizer memcheck and racecheck on the checks", [Point(LLAMA_8B, 1, 650)],
        [Contestant(tool, "sanitizer", tool) for tool in ("memcheck", "racecheck")], budget=150, default=False),
]
