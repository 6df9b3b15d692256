#!/usr/bin/env python3
"""Write made-up evaluation results for tests of reports.

usage: sample_results.py RESULTS BENCH [HOSTILE]

Numbers are random but plausible. With HOSTILE, names contain markup and values are missing.
"""
import json
import math
import random
import sys

results, bench = sys.argv[1:3]
hostile = len(sys.argv) > 3
rng = random.Random(3)

# name, bits per value, KL
CACHES = [("f16", 16.02, 0.0), ("selective", 8.88, 2.7e-5), ("kivi-4", 5.28, 4.8e-3), ("kivi-2", 3.30, 0.21),
          ("best-4", 4.70, 1.24e-3), ("best-3", 3.46, 5.5e-3), ("best-2", 2.58, 0.046),
          ("sink 4: f16; body: k=rot3 v=rot2; window 128: f16", 3.0, 0.0083),
          ("llama.cpp:f16", 16.0, 0.0), ("llama.cpp:q8_0", 8.5, 2e-4), ("llama.cpp:q5_1", 6.0, 6.6e-3), ("llama.cpp:q5_0", 5.5, 9e-3),
          ("llama.cpp:q4_1", 5.0, 0.026), ("llama.cpp:q4_0", 4.5, 0.035), ("llama.cpp:iq4_nl", 4.5, 0.027)]
if hostile:
    CACHES.append(("<script>alert(1)</script>&\"'\u2028", 2.0, 0.5))
LAYERS = 30


def metric(value, stderr, n):
    return {"value": value, "stderr": stderr, "n": n}


def series(x, y, stderr, x_label, y_label):
    return {"x": x, "y": y, "stderr": stderr, "x_label": x_label, "y_label": y_label}


def clip(x):
    return min(1.0, max(0.0, x))


def text(kl):
    depth = [512, 1024, 1536, 2048, 2560, 3072, 3584]
    by_depth = [kl * (0.6 + i * 0.12) * math.exp(rng.gauss(0, 0.1)) for i in range(len(depth))]
    layers = [clip(0.4 * math.sqrt(kl) * (1 + 0.5 * math.sin(i)) + 1e-4 * (kl > 0)) for i in range(LAYERS)]
    return {"metrics": {"ppl": metric(13.46 * (1 + kl), 0.31, 2047), "kl_mean": metric(kl, kl * 0.06, 2047),
                        "kl_median": metric(kl / 2, None, 2047), "kl_p99": metric(kl * 8, None, 2047), "kl_p999": metric(kl * 20, None, 2047),
                        "top1": metric(clip(1 - 0.6 * math.sqrt(kl)), 0.004, 2047)},
            "series": {"kl_by_depth": series(depth, by_depth, [k * 0.1 for k in by_depth], "tokens before the prediction", "KL (nats)"),
                       "hellinger_by_layer": series(list(range(LAYERS)), layers, [v * 0.05 for v in layers], "layer", "Hellinger distance")}}


def needle(kl):
    lengths, depths = [512, 1024, 2048, 4096], [0, 25, 50, 75, 100]
    z = [[clip(round(5 * (1 - 1.5 * kl - 0.05 * i - rng.random() * 0.2)) / 5) for i in range(len(lengths))] for _ in depths]
    if hostile:
        z[0][0] = None
    mean = sum(v or 0 for row in z for v in row) / 20
    return {"metrics": {"found": metric(mean, math.sqrt(mean * (1 - mean) / 100), 100), "log_likelihood": metric(-0.4 - kl * 9, 0.08, 100)},
            "heat": {"found": {"x": lengths, "y": depths, "z": z, "x_label": "context (tokens)", "y_label": "depth (%)"}}}


def share(base, n):
    def make(kl):
        p = clip(base - 0.3 * kl + rng.gauss(0, 0.01))
        return {"metrics": {"acc": metric(p, math.sqrt(p * (1 - p) / n), n), "acc_norm": metric(clip(p + 0.02), math.sqrt(p * (1 - p) / n), n)}}
    return make


TASKS = {"text": text, "needle": needle, "passkey": share(0.93, 50), "choice": share(0.42, 200)}
with open(results, "w", encoding="utf-8") as file:
    run = {"type": "run", "version": "0.1.0", "model": "Sample <b>135M</b>" if hostile else "Sample-135M", "model_fingerprint": "4711-abcdef",
           "weights": "f32", "n_threads": 2, "cpu": "a CPU with two cores", "date": "2026-01-02 03:04",
           "command": "lowkey eval text needle passkey choice --kv best-3 -m sample.gguf --text 'a & b.txt' -o results.jsonl"}
    file.write(json.dumps(run) + "\n")
    for task, make in TASKS.items():
        for kv, bits, kl in CACHES:
            file.write(json.dumps({"type": "item", "task": task, "kv": kv, "key": "0", "score": 1}) + "\n")
            result = {"type": "result", "task": task, "kv": kv, **make(kl)}
            result["metrics"]["bits_per_value"] = metric(bits, None, 1)
            result["metrics"]["bytes_per_token"] = metric(bits * 1440, None, 1)
            file.write(json.dumps(result) + "\n")
    file.write('{"type":"item","task":"te')  # an incomplete line, as after a kill

with open(bench, "w", encoding="utf-8") as file:
    rows = []
    for kv, bits, _ in CACHES[:7]:
        for depth in (0, 8192, 32768, 131072):
            rows.append({"kv": kv, "depth": depth, "prefill_tps": 600 / (1 + depth / 9000), "decode_tps": 140 / (1 + depth * bits / 90000),
                         "cache_bytes": int(depth * bits * 1440), "bits_per_value": bits if depth else None})
    json.dump({"model": "Sample-135M", "n_threads": 2, "cpu": "a CPU with two cores", "results": rows}, file)
