"""Decode attention of other implementations, for scripts/bench-gpu: PyTorch's (cuDNN, flash, unfused), FlashAttention 3,
FlashInfer, exllamav3's quantized cache.

usage: python3 rivals_torch.py FOLDER     with wheels; reads jobs, one per line, and answers each with a line of JSON:

    attend heads=32/8 d=128 batch=8 rows=32768 queries=1 with=cudnn

`us` is the median time of one layer in a graph of layers that together have at least 768 MB of rows. Rows are normal noise.
"""
import glob
import importlib
import json
import math
import os
import sys
import types
import zipfile

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    torch, missing = None, f"no PyTorch: {error}"

COLD_BYTES = 768 << 20
MAX_LAYERS = 48
PAGE = 256  # rows of a page of exllamav3's cache


def graph_us(call, n, repeats=9):
    """(median, standard deviation, repetitions) of microseconds of one of n calls, which a graph replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(n):
                call(i)
        graph.replay()
        torch.cuda.synchronize()
        times = []
        for i in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / n)
            if sum(times) * n > 2e5 and i >= 2:
                break
    times.sort()
    mean = sum(times) / len(times)
    deviation = math.sqrt(sum((t - mean) ** 2 for t in times) / max(1, len(times) - 1))
    return times[len(times) // 2], deviation, len(times)


class Bench:
    def __init__(self, wheels):
        self.point, self.kv, self.q = None, None, None
        self.fa3, self.exl = None, None
        unpacked = os.path.join(wheels, "unpacked")
        for path in glob.glob(os.path.join(wheels, "*.whl")):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked)
        self.wheels = unpacked
        sys.path.insert(0, unpacked)

    def rows(self, job):
        """The rows of a point, kept for the next job of the same point: (queries, rows [layer][2][batch][n][heads][d])."""
        heads, kv_heads = (int(n) for n in job["heads"].split("/"))
        d, batch, n, queries = (int(job[key]) for key in ("d", "batch", "rows", "queries"))
        point = (heads, kv_heads, d, batch, n, queries)
        if point != self.point:
            self.point, self.kv, self.q = None, None, None
            torch.cuda.empty_cache()
            layer = 2 * batch * n * kv_heads * d * 2
            layers = max(1, min(MAX_LAYERS, -(-COLD_BYTES // layer)))
            self.kv = torch.empty(layers, 2, batch, n, kv_heads, d, dtype=torch.bfloat16, device="cuda")
            for part in self.kv.view(layers * 2, -1):
                part.normal_()
            self.q = torch.randn(batch, queries, heads, d, dtype=torch.bfloat16, device="cuda")
            self.point = point
        return self.q, self.kv

    def f16(self, job):
        """The same bits as half floats, which are finite numbers too, in torch's order [batch][heads][n][d]."""
        q, kv = self.rows(job)
        return q.to(torch.float16).transpose(1, 2), kv.view(torch.float16).transpose(3, 4)

    def sdpa(self, job, backend):
        q, kv = self.f16(job)
        with sdpa_kernel([backend]):
            return graph_us(lambda i: F.scaled_dot_product_attention(q, kv[i, 0], kv[i, 1], enable_gqa=True), len(kv))

    def cudnn(self, job):
        return self.sdpa(job, SDPBackend.CUDNN_ATTENTION)

    def flash(self, job):
        return self.sdpa(job, SDPBackend.FLASH_ATTENTION)

    def unfused(self, job):
        """Matrix product, softmax in f32, matrix product, with the KV heads repeated in memory: Transformers' eager attention."""
        q, kv = self.f16(job)
        group = q.shape[1] // kv.shape[3]
        repeat = (lambda x: x[:, :, None].expand(-1, -1, group, -1, -1).reshape(x.shape[0], -1, *x.shape[2:])) if group > 1 else (lambda x: x)

        def call(i):
            scores = torch.matmul(q, repeat(kv[i, 0]).transpose(2, 3)) / math.sqrt(q.shape[3])
            return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(torch.float16), repeat(kv[i, 1]))
        return graph_us(call, len(kv))

    def gemv(self, job):
        q, kv = self.f16(job)
        return graph_us(lambda i: torch.matmul(q, kv[i, 0].transpose(2, 3)), len(kv))

    def fa3_call(self, job, kv, q, splits, **more):
        if self.fa3 is None:
            from fa3_fwd_interface import flash_attn_func
            self.fa3 = flash_attn_func
        best = None
        for n in splits:
            found = graph_us(lambda i: self.fa3(q, kv[i, 0], kv[i, 1], causal=q.shape[1] > 1, num_splits=n, **more), len(kv))
            best = found if best is None or found[0] < best[0] else best
        return best

    def splits(self, kv):
        return (0,) if kv.shape[2] * kv.shape[4] >= 132 else (0, 8, 16, 32, 64)

    def fa3_bf16(self, job):
        q, kv = self.rows(job)
        return self.fa3_call(job, kv, q, self.splits(kv))

    def fa3_fp8(self, job):
        q, kv = self.rows(job)
        if kv.numel() > 8 << 30:
            raise ValueError("rows are made in bf16 first: no memory for both")
        kind = torch.float8_e4m3fn
        one = torch.ones(kv.shape[2], kv.shape[4], device="cuda")
        return self.fa3_call(job, kv.to(kind), q.to(kind), self.splits(kv), q_descale=one, k_descale=one, v_descale=one)

    def flashinfer(self, job):
        import flashinfer  # compiles its kernels at first use; without them in its cache this takes minutes
        q, kv = self.rows(job)
        q, kv = q.to(torch.float16), kv.view(torch.float16)
        if kv.shape[2] > 1:
            raise ValueError("only batch 1 is called here")
        call = flashinfer.single_decode_with_kv_cache
        return graph_us(lambda i: call(q[0, 0], kv[i, 0, 0], kv[i, 1, 0], use_tensor_cores=True), len(kv))

    def exllamav3(self, job, bits):
        """Its kernel for short queries over the packed cache, with zeros as codes: speed does not depend on them."""
        if self.exl is None:
            # The package's own __init__ compiles an extension, which this kernel (Triton) does not need.
            for name in ("exllamav3", "exllamav3.modules", "exllamav3.modules.attention_fn", "exllamav3.util"):
                module = types.ModuleType(name)
                module.__path__ = [os.path.join(self.wheels, *name.split("."))]
                sys.modules[name] = module
            self.exl = importlib.import_module("exllamav3.modules.attention_fn.triton_paged").paged_attn_triton_decode
        q, kv = self.rows(job)
        layers, _, batch, n, heads, d = kv.shape
        pages, q = n // PAGE, q.to(torch.float16)
        layers = max(1, min(MAX_LAYERS, -(-COLD_BYTES * 16 // (2 * batch * n * heads * d * (2 * bits + 1)))))
        codes = torch.zeros(layers, 2, batch * pages, PAGE, heads * d // 32 * bits, dtype=torch.int, device="cuda")
        scales = torch.ones(layers, 2, batch * pages, PAGE, heads * d // 32, dtype=torch.float16, device="cuda")
        table = torch.arange(batch * pages, dtype=torch.int, device="cuda").view(batch, -1)
        before = torch.full((batch,), n - q.shape[1], dtype=torch.int, device="cuda")
        return graph_us(lambda i: self.exl(q, None, None, codes[i, 0], codes[i, 1], table, before, causal=True, max_kv_len=n,
                                           qc=(scales[i, 0], scales[i, 1], bits, bits), pre_appended_len=q.shape[1],
                                           n_kv_heads_override=heads), layers)

    def answer(self, line):
        kind, *words = line.split()
        job = dict(word.split("=", 1) for word in words)
        if kind != "attend":
            return {"skipped": f"no job '{kind}'"}
        functions = {"cudnn": self.cudnn, "flash": self.flash, "unfused": self.unfused, "gemv": self.gemv, "fa3": self.fa3_bf16,
                     "fa3_fp8": self.fa3_fp8, "flashinfer": self.flashinfer, "exllamav3_4": lambda job: self.exllamav3(job, 4)}
        try:
            us, deviation, repeats = functions[job["with"]](job)
        except torch.cuda.OutOfMemoryError:
            self.point, self.kv, self.q = None, None, None
            torch.cuda.empty_cache()
            return {"skipped": "out of memory"}
        except Exception as error:  # pylint: disable=broad-except  # whatever it cannot do is a reason
            return {"skipped": f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")}
        _, kv_heads, d, batch, n, _ = self.point
        width = {"fa3_fp8": 1, "exllamav3_4": 4.5 / 8}.get(job["with"], 2)  # bytes of a value
        sides = 1 if job["with"] == "gemv" else 2
        return {"us": us, "sd": deviation, "repeats": repeats, "gbs": sides * batch * n * kv_heads * d * width / us / 1e3}


def main():
    bench = Bench(sys.argv[1]) if torch and torch.cuda.is_available() else None
    why = None if bench else (missing if not torch else "PyTorch sees no card")
    if bench:
        print(f"torch {torch.__version__}, cudnn {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}", flush=True)
    for line in sys.stdin:
        print(json.dumps(bench.answer(line) if bench else {"skipped": why}), flush=True)


if __name__ == "__main__":
    main()
