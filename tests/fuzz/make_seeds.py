#!/usr/bin/env python3
"""Write the seeds of the fuzz targets: FOLDER/TARGET/SEED. scripts/test's step `fuzz` runs this.

usage: make_seeds.py FOLDER
"""
import json
import math
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "serve"))
sys.dont_write_bytecode = True

import tiny_model as gguf  # noqa: E402

F32_TENSOR, F16_TENSOR, Q4_0_TENSOR, I32_TENSOR = 0, 1, 2, 26


def write(target, name, data):
    folder = os.path.join(sys.argv[1], target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def text(value):
    return gguf.pack_value(gguf.STRING, value)


def u32(value):
    return gguf.pack_value(gguf.U32, value)


def u64(value):
    return gguf.pack_value(gguf.U64, value)


# ---- models ----

def layers_of(arch, shapes, width):
    """The shapes of each layer's tensors, from those of a plain one."""
    if arch in ("lfm2", "lfm2moe"):
        conv = {name: shape for name, shape in shapes.items() if "attn_" not in name}
        conv |= {"attn_norm": (width,), "shortconv.conv.weight": (3, width),
                 "shortconv.in_proj.weight": (width, 3 * width),
                 "shortconv.out_proj.weight": (width, width)}
        return [conv, shapes | {"attn_q_norm": (width,), "attn_k_norm": (width,)}]
    if arch == "granitehybrid":
        state = {name: shape for name, shape in shapes.items() if "attn_" not in name}
        state |= {"attn_norm": (width,), "ssm_in": (width, 2 * 128 + 2 * 16 + 4),
                  "ssm_conv1d": (4, 128 + 2 * 16), "ssm_conv1d.bias": (128 + 2 * 16,),
                  "ssm_dt.bias": (4,), "ssm_a.": (1, 4), "ssm_d.": (1, 4), "ssm_norm": (128, 1),
                  "ssm_out": (128, width)}
        return [state, shapes]
    if arch != "gemma4":
        return [shapes]
    layers = []
    for i in range(4):
        d = width // 2 if i % 2 == 0 else width
        own = shapes | {"attn_q": (width, d), "attn_k": (width, d), "attn_v": (width, d),
                        "attn_output": (d, width), "attn_q_norm": (d,), "attn_k_norm": (d,),
                        "post_attention_norm": (width,), "post_ffw_norm": (width,),
                        "layer_output_scale": (1,), "inp_gate": (width, 32), "proj": (32, width),
                        "post_norm": (width,)}
        if "ffn_gate_inp" in shapes:
            own |= {name: (width,) for name in ("ffn_gate_inp.scale", "pre_ffw_norm_2",
                                                "post_ffw_norm_1", "post_ffw_norm_2")}
        for name in ("attn_k", "attn_v", "attn_k_norm") if i >= 2 else ():
            del own[name]
        layers.append(own)
    return layers


def model(arch, vocabulary, kind=Q4_0_TENSOR, experts=False, mtp=False):
    """Layers of zeros, 64 wide; of hybrids one of each kind. Mixtures have two experts, and no dense
    network except in Gemma 4, whose last two of four layers share K and V. With mtp, a layer of
    qwen35moe follows that predicts further tokens."""
    width, n_ff, n_expert = 64, 64, 2
    n_vocab = len(vocabulary[0]) if vocabulary else 32
    numbers = {"vocab_size": n_vocab, "context_length": 64, "embedding_length": width,
               "block_count": 1, "feed_forward_length": n_ff, "attention.head_count": 1,
               "attention.head_count_kv": 1, "attention.key_length": width,
               "attention.value_length": width, "rope.dimension_count": width}
    if experts:
        numbers |= {"expert_count": n_expert, "expert_used_count": 1,
                    "expert_feed_forward_length": n_ff, "attention.sliding_window": 16}
    entries = {"general.architecture": text(arch), "general.name": text("seed")}
    entries |= {f"{arch}.{name}": u32(value) for name, value in numbers.items()}
    if arch == "gemma4":
        entries |= {f"{arch}.{name}": u32(value) for name, value in {
            "block_count": 4, "attention.sliding_window": 16, "attention.key_length_swa": width // 2,
            "attention.value_length_swa": width // 2, "rope.dimension_count_swa": width // 2,
            "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 32}.items()}
        entries[f"{arch}.attention.sliding_window_pattern"] = gguf.pack_array(gguf.I32, [1, 0] * 2)
    if arch in ("lfm2", "lfm2moe"):
        entries |= {f"{arch}.block_count": u32(2), f"{arch}.shortconv.l_cache": u32(3),
                    f"{arch}.attention.head_count_kv": gguf.pack_array(gguf.I32, [0, 1])}
    entries[f"{arch}.attention.layer_norm_rms_epsilon"] = gguf.pack_value(gguf.F32, 1e-5)
    if arch == "lfm2moe":
        entries[f"{arch}.expert_gating_func"] = u32(2)
        del entries[f"{arch}.attention.sliding_window"]
    if arch == "granitehybrid":
        state = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1,
                 "ssm.time_step_rank": 4, "ssm.inner_size": 128}
        entries |= {f"{arch}.{name}": u32(value) for name, value in state.items()}
        entries |= {f"{arch}.block_count": u32(2),
                    f"{arch}.logit_scale": gguf.pack_value(gguf.F32, 2),
                    f"{arch}.attention.head_count_kv": gguf.pack_array(gguf.I32, [0, 1])}
    if arch == "qwen35moe":
        recurrent = {"full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 16,
                     "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 32}
        entries |= {f"{arch}.{name}": u32(value) for name, value in recurrent.items()}
        entries[f"{arch}.block_count"] = u32(3 if mtp else 2)
        if mtp:
            entries[f"{arch}.nextn_predict_layers"] = u32(1)
        entries[f"{arch}.rope.dimension_sections"] = gguf.pack_array(gguf.I32, [11, 11, 10, 0])
    if arch == "deepseek2":
        latent = {"attention.kv_lora_rank": 32, "attention.key_length": 48,
                  "attention.key_length_mla": 48, "attention.value_length_mla": 32,
                  "attention.q_lora_rank": 32, "rope.dimension_count": 16,
                  "expert_shared_count": 1, "expert_gating_func": 2}
        entries |= {f"{arch}.{name}": u32(value) for name, value in latent.items()}
    if vocabulary:
        tokens, types = vocabulary
        entries |= {"tokenizer.ggml.model": text("gpt2"), "tokenizer.ggml.pre": text("qwen2"),
                    "tokenizer.ggml.tokens": gguf.pack_array(gguf.STRING, tokens),
                    "tokenizer.ggml.token_type": gguf.pack_array(gguf.I32, types),
                    "tokenizer.ggml.merges": gguf.pack_array(gguf.STRING, ["a b"]),
                    "tokenizer.ggml.eos_token_id": u32(n_vocab - 1),
                    "tokenizer.chat_template": text("{{ message['content'] }}")}
    else:
        entries["tokenizer.ggml.model"] = text("no_vocab")
    shapes = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
              "attn_output": (width, width), "ffn_gate": (width, n_ff), "ffn_up": (width, n_ff),
              "ffn_down": (n_ff, width), "attn_norm": (width,), "ffn_norm": (width,)}
    if experts:
        for name in "gate", "up", "down":
            shapes[f"ffn_{name}_exps"] = shapes[f"ffn_{name}"] + (n_expert,)
            if arch != "gemma4":
                del shapes[f"ffn_{name}"]
        shapes["ffn_gate_inp"] = (width, n_expert)
    if arch == "lfm2moe":
        shapes["exp_probs_b.bias"] = (n_expert,)
    if arch == "qwen3moe":
        shapes |= {"attn_q_norm": (width,), "attn_k_norm": (width,)}
    if arch == "gpt-oss":
        shapes["post_attention_norm"] = shapes.pop("ffn_norm")
        shapes |= {"attn_sinks": (1,), "attn_output.bias": (width,),
                   "ffn_gate_inp.bias": (n_expert,), "ffn_gate_exps.bias": (n_ff, n_expert),
                   "ffn_up_exps.bias": (n_ff, n_expert), "ffn_down_exps.bias": (width, n_expert)}
    if arch == "phi3":
        shapes["ffn_up"] = (width, 2 * n_ff)
        del shapes["ffn_gate"]
    if arch == "qwen2":
        shapes |= {"attn_q.bias": (width,), "attn_k.bias": (width,), "attn_v.bias": (width,)}
    layers = layers_of(arch, shapes, width)
    if arch == "deepseek2":
        for name in "attn_q", "attn_k", "attn_v":
            del shapes[name]
        shapes |= {"attn_q_a": (width, 32), "attn_q_a_norm": (32,), "attn_q_b": (32, 48),
                   "attn_kv_a_mqa": (width, 48), "attn_kv_a_norm": (32,), "attn_k_b": (32, 32, 1),
                   "attn_v_b": (32, 32, 1), "attn_output": (32, width),
                   "ffn_gate_shexp": (width, n_ff), "ffn_up_shexp": (width, n_ff),
                   "ffn_down_shexp": (n_ff, width), "exp_probs_b.bias": (n_expert,)}
    if arch == "qwen35moe":
        shapes |= {"attn_q": (width, 2 * width), "attn_q_norm": (width,), "attn_k_norm": (width,),
                   "post_attention_norm": shapes.pop("ffn_norm"), "ffn_gate_inp_shexp": (width,),
                   "ffn_gate_shexp": (width, n_ff), "ffn_up_shexp": (width, n_ff),
                   "ffn_down_shexp": (n_ff, width)}
        recurrent = {name: shape for name, shape in shapes.items()
                     if not name.startswith("attn_") or name == "attn_norm"}
        recurrent |= {"attn_qkv": (width, 64), "attn_gate": (width, 32), "ssm_conv1d": (4, 64),
                      "ssm_dt.bias": (2,), "ssm_a.": (2,), "ssm_beta": (width, 2),
                      "ssm_alpha": (width, 2), "ssm_norm": (16,), "ssm_out": (32, width)}
        layers = [recurrent, shapes]
        if mtp:
            layers.append(shapes | {"nextn.eh_proj.weight": (2 * width, width), "nextn.enorm.weight": (width,),
                                    "nextn.hnorm.weight": (width,), "nextn.shared_head_norm.weight": (width,)})
    norm = "token_embd_norm.weight" if arch in ("lfm2", "lfm2moe") else "output_norm.weight"
    parts = [("token_embd.weight", (width, n_vocab)), (norm, (width,))]
    parts += [(f"blk.{i}.{name}".rstrip(".") + ("" if "." in name else ".weight"), shape)
              for i, layer in enumerate(layers) for name, shape in layer.items()]
    if arch == "gemma4":
        parts += [("rope_freqs.weight", (width // 2,)), ("per_layer_proj_norm.weight", (32,)),
                  ("per_layer_token_embd.weight", (4 * 32, n_vocab)),
                  ("per_layer_model_proj.weight", (width, 4 * 32))]
    if arch == "phi3":
        parts += [(f"rope_factors_{length}.weight", (width // 2,)) for length in ("long", "short")]
    out = []
    for name, shape in parts:
        small = len(shape) == 1 or "conv1d" in name or name.endswith(
            ("bias", "conv.weight", "ssm_a", "ssm_d", "ssm_norm.weight"))
        of = F32_TENSOR if small else kind
        values = math.prod(shape)
        size = values // 32 * 18 if of == Q4_0_TENSOR else values * 4
        out.append((name, shape, of, bytes(size)))
    return gguf.gguf_bytes(entries, out)


def write_models():
    tokens = (["a", "b", "ab", "Ġ", "!", "<|end|>"], [1, 1, 1, 1, 1, 3])
    write("gguf", "llama", model("llama", None))
    write("gguf", "qwen2-bpe", model("qwen2", tokens))
    for arch in "phi3", "gemma4", "lfm2", "granitehybrid":
        write("gguf", arch, model(arch, None))
    for arch in "qwen3moe", "gpt-oss", "qwen35moe", "deepseek2", "gemma4", "lfm2moe":
        name = "gemma4-experts" if arch == "gemma4" else arch
        write("gguf", name, model(arch, None, experts=True))
    write("gguf", "qwen35moe-mtp", model("qwen35moe", None, experts=True, mtp=True))
    write("gguf", "header", model("llama", None)[:64])
    write("gguf", "empty", gguf.gguf_bytes({}, []))


# ---- sidecars ----

def sidecar(method, parts, n_layer=1, n_head_kv=2, d_head=4):
    entries = {"general.architecture": text("sidecar"), "general.type": text("sidecar"),
               "lowkey.sidecar.version": u32(1), "lowkey.sidecar.method": text(method),
               "lowkey.sidecar.options": text("seed"), "lowkey.sidecar.model_fingerprint": u64(1),
               "lowkey.sidecar.n_layer": u32(n_layer), "lowkey.sidecar.n_head_kv": u32(n_head_kv),
               "lowkey.sidecar.d_head": u32(d_head), "lowkey.sidecar.calibration_hash": u64(2),
               "lowkey.sidecar.calibration_tokens": u64(3)}
    return gguf.gguf_bytes(entries, parts)


def part(name, shape, kind=F32_TENSOR, value=None):
    n = 1
    for length in shape:
        n *= length
    if kind == F16_TENSOR:
        return name, shape, kind, struct.pack("<H", 0x3000) * n
    return name, shape, kind, struct.pack("<i" if kind == I32_TENSOR else "<f",
                                          value or (1 if kind == I32_TENSOR else 0.5)) * n


def basis(side, n_group=2, width=4, n_comp=3, whole=True):
    parts = [part(f"blk.0.{side}.down", (width, n_comp, n_group)),
             part(f"blk.0.{side}.rank", (n_group,), I32_TENSOR, 2),
             part(f"blk.0.{side}.error", (n_comp, n_group))]
    if whole:
        parts += [part(f"blk.0.{side}.up", (width, n_comp, n_group)),
                  part(f"blk.0.{side}.mean", (width, n_group))]
    return parts


def less_networks(n_head, n_psi=2, n_head_kv=2, d_head=4, n_hidden=3, n_feature=2):
    halves = {"phi.w1": (n_hidden, d_head, n_head), "phi.w2": (n_feature, n_hidden, n_head),
              "psi.w1": (n_hidden, d_head, n_psi), "psi.w2": (n_feature, n_hidden, n_psi)}
    floats = {"phi.level": (n_head,), "psi.w3": (n_feature, n_feature, n_psi),
              "psi.s1": (n_feature, n_psi), "psi.s2": (n_feature, n_psi)}
    return [part("blk.0.less." + name, shape, F16_TENSOR) for name, shape in halves.items()] + \
           [part("blk.0.less." + name, shape) for name, shape in floats.items()]


def write_sidecars():
    write("sidecar", "palu", sidecar("palu", basis("k") + basis("v", whole=False)))
    write("sidecar", "kpre", sidecar("palu", basis("kpre", 1, 8, 5)))
    write("sidecar", "less", sidecar("less", less_networks(2)))
    write("sidecar", "less-grouped", sidecar("less", less_networks(6)))
    write("sidecar", "header", sidecar("palu", [])[:40])


def write_less_states():
    """struct lk_less_state, then 4 x 24 weights and 2 levels."""
    head = struct.pack("<QQiiqifii", 0x3430657461746B6C, 77, 0, 3, 30, 2, 0.25, 0, 0)
    numbers = struct.pack("<98f", *[0.5] * 98)
    write("less_state", "whole", head + numbers)
    write("less_state", "cut", (head + numbers)[:-4])
    write("less_state", "other", struct.pack("<Q", 1) + head[8:] + numbers)


def write_states():
    """The letter of a kind, and its file; fuzz_states.c makes the checksums right."""
    bits = [struct.pack(">d", x).hex() for x in (9.5, 0.5, 0.1, 0.01, 0.2, 0.3, 0.9, 100, 3.5, 40, 3.6, 0.05)]
    entry = " ".join([f"{9:016x}", f"{4094:016x}", *bits]) + " best-3\n"
    log = f"lowkey-tune 2 {77:016x}\n"
    write("states", "log", "t" + log + entry + entry.replace("best-3", "k=rot3 v=rot2") + f"end {0:016x}\n")
    write("states", "log-empty", "t" + log + f"end {0:016x}\n")
    write("states", "log-other", "t" + log.replace("4d", "4e") + entry + f"end {0:016x}\n")
    lora = struct.pack("<QQqqd", 0x3230746661726F6C, 77, 5, 3, 0.5) + struct.pack("<24f", *[0.5] * 24)
    write("states", "lora", b"l" + lora)
    write("states", "lora-cut", b"l" + lora[:-4])
    write("states", "lora-best", b"l" + lora[:24] + struct.pack("<q", 6) + lora[32:])
    statistics = b"LKSTAT1\0" + struct.pack("<QQQ", 77, 512, 9) + struct.pack("<24d", *[0.5] * 24) + bytes(8)
    write("states", "statistics", b"s" + statistics)
    write("states", "statistics-cut", b"s" + statistics[:-16])


# ---- saved sessions ----

SESSIONS = {"best-3": 1, "h2o-less": 2, "tova-less": 3, "best-1.9": 4, "tale": 5, "streaming": 6, "hybrid": 7, "cut": 8}
SECTIONS = ["recipe", "tokens", "logits", "sampler", "states", "counts", "rows", "checkpoints", "prefill", "header"]


def edits(session, *list_of):
    """(section, offset, value): a value is an int, or a float."""
    out = bytes([SESSIONS[session]])
    for section, offset, value in list_of:
        out += bytes([SECTIONS.index(section)]) + struct.pack("<I", offset)[:3]
        out += struct.pack("<f" if isinstance(value, float) else "<i", value)
    return out


def write_sessions():
    nan, inf = float("nan"), float("inf")
    write("session", "raw", b"\0lowkeyKV")
    write("session", "header", edits("best-3", ("header", 8, 1), ("header", 64, 64)))
    write("session", "sampler-not-finite", edits("best-3", ("sampler", 16, nan), ("sampler", 24, inf)))
    write("session", "logits-not-finite", edits("best-3", ("logits", 0, nan)))
    for kind in SESSIONS:
        write("session", f"{kind}-as-it-is", edits(kind))
        write("session", f"{kind}-counts", edits(kind, ("counts", 0, 7), ("counts", 40, -1)))
        write("session", f"{kind}-checkpoints", edits(kind, ("checkpoints", 0, 151), ("checkpoints", 24, -1)))
        write("session", f"{kind}-rows", edits(kind, ("rows", 0, nan), ("rows", 1000, inf)))
    # struct lk_saved_prefill: tokens, step, tokens done, layer, is_prepared, planned
    for offset, value in ((0, 301), (8, 300), (8, -1), (16, 1), (24, 0), (24, -1), (28, 1), (28, 2), (32, 1), (40, inf)):
        write("session", f"cut-{offset}-{value}", edits("cut", ("prefill", offset, value)))
    write("session", "hybrid-states", edits("hybrid", ("states", 0, inf), ("states", 256, -1.0)))
    # Positions and scores of a layer follow its blocks: of the first layer, then of the second one.
    for recipe, end in (("h2o-less", 46528), ("tova-less", 41952)):
        for layer in (1, 2):
            write("session", f"{recipe}-position-{layer}", edits(recipe, ("rows", layer * end - 1000, 5)))
            write("session", f"{recipe}-score-{layer}", edits(recipe, ("rows", layer * end - 8, inf)))
        write("session", f"{recipe}-states", edits(recipe, ("states", 0, inf), ("states", 256, -1.0)))


# ---- results ----

def lines(*objects):
    return "".join(json.dumps(o, separators=(",", ":")) + "\n" for o in objects)


def write_results():
    run = {"type": "run", "version": "0.1.0", "model": "m", "model_fingerprint": "f", "weights": "w",
           "command": "lowkey eval", "options": {"--sidecar": "none"}, "machine": {"cpu": "c"}}
    series = {"kl": {"x": [1, 2, 3], "y": [0.1, None, 0.3], "stderr": [0.01, 0.01, 0.01],
                     "x_label": "x", "y_label": "y"}}
    heat = {"acc": {"x": [1, 2], "y": [0, 1], "z": [[0.5, 1], [None, 0]], "x_label": "x",
                    "y_label": "y"}}
    item = {"type": "item", "task": "t", "kv": "f16", "key": "1", "right": True}

    def result(kv, task):
        return {"type": "result", "task": task, "kv": kv, "series": series, "heat": heat,
                "metrics": {"kl_mean": {"value": 0.1, "stderr": 0.01, "n": 3},
                            "cache_bytes": {"value": 1000}}}
    good = lines(run, item, result("f16", "agree"), result("best-3", "agree"), result("f16", "text"))
    write("results", "eval", good.encode())
    write("results", "markup", lines(run, result("<lk-fuzz>&\"'", "t")).encode())
    write("results", "cut", good[:-20].encode())
    write("results", "empty", b"")
    write("results", "newline", lines(run).encode() + b'{"a":"\\\n')


# ---- texts ----

def write_texts():
    def stops(*words):
        return bytes([len(words)]) + b"".join(bytes([len(w)]) + w for w in words)
    write("detokenizer", "none", stops() + "plain text é漢🙂".encode())
    write("detokenizer", "one", stops(b"END") + b"some text EEN END and more")
    write("detokenizer", "characters", stops("漢字".encode()) + "a漢漢字b".encode())
    write("detokenizer", "several", stops(b"aab", b"ab", b"</s>") + b"aaaaab</s>")
    write("detokenizer", "invalid", stops(b"x") + b"\xf0\x9f\x99 \xff\xc3\xe6\xbc x")
    write("detokenizer", "zero", stops(b"x") + b"a\0b x c")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "b"]}}\n</tool_call>'
    write("tools", "one", "text \n\n" + call)
    write("tools", "several", call + "\n" + call)
    write("tools", "open", call[:-12])
    write("tools", "broken", "a <tool_call>{</tool_call>" + call)
    write("tools", "functions", "<think>x</think><tool_call>\n<function=f>\n<parameter=a>\n1\n"
          "</parameter>\n</function>\n</tool_call>")
    write("tools", "gemma", '<|channel>thought\nx<channel|>y<|tool_call>call:f{a:<|"|>b<|"|>,c:[1]}'
          "<tool_call|>")
    write("tools", "lines", "<function_calls>f(a=1)\nf(b='x')</function_calls>")
    write("tools", "deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
          '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>')
    write("tools", "messages", "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>"
          "commentary to=functions.f <|constrain|>json<|message|>{}<|call|>")
    write("tools", "mistral", '[THINK]x[/THINK]y[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}')
    write("tools", "functools", 'functools[{"name": "f", "arguments": {}}]')
    for kind in (0, 1):
        write("tokens", f"words-{kind}", bytes([kind]) + b" hello hell  world <|im_end|> or")
        write("tokens", f"unicode-{kind}", bytes([kind]) + "é 漢字 🙂\n\t\u2581he".encode())
    for name in ("trip", "store", "a.new", ".hidden", "-rf", "..", "a/b", "a" * 128, "a" * 129):
        write("names", name.replace("/", "-slash-").replace(".", "dot-")[:20] + str(len(name)), name)
    write("names", "equal", "secretsecret")
    recipes = ["best-4", "f16", "best-1.9", "sink 4: f16; body: k=rot3 v=rot2; window 128: f16",
               "sink 4: f16; body 1024: int8; body: rot2; window 64: f16",
               "layers 0-3: f16; sink 4: f16; body: none; window 256: f16",
               "palu", "sink 1: f16; body: k=kvquant3 v=asym4(hadamard,g32); residual 128: f16",
               "all: k=latent(pre)+asym3(hadamard) v=hqq2(g128)", "kvarn-k4v2", "oscar-2",
               "sink 4: f16; body: k=kvarn5 v=latent50%+kvarn3; window 128: f16"]
    for i, recipe in enumerate(recipes):
        write("recipe", f"recipe-{i}", recipe)


# ---- grammars: g or s, a grammar or a schema, and after a zero byte a text (fuzz_grammar.c) ----

def write_grammars():
    write("grammar", "ambiguous", 'groot ::= e\ne ::= e e | e e e | "a" | ""\0' + "a" * 70)
    write("grammar", "classes", 'groot ::= (\n "ab"* |\n [^a-z\\n]{2,} . )+\0ababABé😀x')
    write("grammar", "expression", 'groot ::= e\ne ::= e "+" t | t # left\n'
          't ::= [0-9]{1,3} | "(" e ")" | "\\u00e9"?\0(1+23)+é+456')
    write("grammar", "object", "s" + compact(
        {"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 9},
            "b": {"type": ["array", "null"], "items": {"$ref": "#"}, "maxItems": 3}},
         "required": ["a"]}) + '\0{"a":"x\\n","b":[{"a":"café"}]}')
    array = {"type": "array", "items": {"$ref": "#/$defs/A"}}
    write("grammar", "refs", "s" + compact(
        {"$defs": {"A": {"anyOf": [array, array | {"maxItems": 9}, {"enum": [1, 0.1, "x", None]}]}},
         "$ref": "#/$defs/A"}) + "\0[[[[[[1,0.1],[]]]]]]")


# ---- requests: a letter that selects the endpoint (fuzz_request.c), then the body ----

def write_requests():
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                         {"role": "assistant", "tool_calls": [
                             {"id": "a", "type": "function",
                              "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
                         {"role": "tool", "tool_call_id": "a", "content": "<|im_end|>"}],
            "n": 2, "stop": ["a", "b"], "logprobs": True, "top_logprobs": 3, "stream": True,
            "logit_bias": {"5": 1, "6": False}, "max_tokens": 3,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {
                "type": "object", "properties": {"a": {"type": "integer"}}}}}],
            "tool_choice": "required"}
    texts = {"prompt": [[1, 2, 3], [4]], "logit_bias": [[5, 1.5], [6, False]], "logprobs": 2,
             "n": 2, "best_of": 2, "temperature": 0, "seed": -1, "kv": "f16", "max_tokens": 2}
    schema = {"$defs": {"A": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/A"}},
                                        {"type": ["string", "null"], "maxLength": 3}]}},
              "$ref": "#/$defs/A"}
    write("request", "tools", "a" + json.dumps(chat))
    write("request", "tokens", "b" + json.dumps(texts))
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"on": True}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]}
    write("request", "anthropic", "c" + json.dumps(
        {"max_tokens": 4, "system": [{"type": "text", "text": "a"}], "stop_sequences": ["b"],
         "tools": [{"name": "f", "input_schema": {"type": "object"}}],
         "tool_choice": {"type": "any"}, "messages": [
             {"role": "user", "content": "a"}, {"role": "assistant", "content": [call]},
             {"role": "user", "content": [result]}]}))
    ollama_call = {"function": {"name": "f", "arguments": {"on": True}}}
    write("request", "ollama-chat", "d" + json.dumps(
        {"options": {"num_predict": 4, "seed": -1}, "format": "json", "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [ollama_call]},
            {"role": "tool", "content": "a"}]}))
    write("request", "ollama-generate", "e" + json.dumps(
        {"prompt": "a", "system": "b", "format": {"type": "boolean"}, "stream": False}))
    write("request", "responses", "l" + json.dumps(
        {"instructions": "a", "text": {"format": {"type": "json_object"}}, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "b"}]}))
    write("request", "chat", "a" + compact(
        {"messages": [{"role": "system", "content": "x"},
                      {"role": "user", "content": [{"type": "text", "text": "y"}]}],
         "stream": True, "stream_options": {"include_usage": True}, "stop": ["a", "b"],
         "logprobs": True, "top_logprobs": 3, "kv": "f16", "n": 2, "seed": 7}))
    write("request", "completion", "b" + compact(
        {"prompt": ["a", [1, 2, 3]], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "echo": True,
         "best_of": 1, "frequency_penalty": 0.1}))
    write("request", "refs", "b" + compact(
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
         "additionalProperties": {"type": "integer"}}))
    fields = {"a": {"type": ["string", "null"], "maxLength": 4},
              "b": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1, "maxItems": 3},
              "c": {"anyOf": [{"const": 5}, {"enum": ["x", None]}]}}
    of_answer = {"type": "object", "properties": fields, "required": ["a"],
                 "additionalProperties": False, "$defs": {"t": {"type": "number"}}}
    write("request", "schema", "a" + compact(
        {"messages": [{"role": "user", "content": "x"}],
         "response_format": {"type": "json_schema", "json_schema": {"schema": of_answer}}}))
    write("request", "recursive", "b" + json.dumps(schema))
    write("request", "json-schema", "b" + json.dumps({"prompt": "a", "json_schema": schema}))
    write("request", "llamacpp", "f" + compact(
        {"prompt": ["a", 5, "b"], "n_predict": 3, "n_probs": 2, "stop": ["x"], "grammar": "root ::= \"a\"*",
         "samplers": ["top_k", "temperature"], "cache_prompt": True, "id_slot": -1, "stream": True}))
    write("request", "infill", "g" + compact(
        {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 2,
         "input_extra": [{"filename": "f", "text": "t"}]}))
    write("request", "embeddings", "h" + compact(
        {"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4, "model": "m"}))
    write("request", "count", "i" + compact(
        {"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
         "thinking": {"type": "enabled", "budget_tokens": 1024}}))
    write("request", "ollama-embed", "j" + compact({"input": ["a", "b"], "truncate": False, "options": {}}))
    write("request", "ollama-embeddings", "k" + compact({"prompt": "a", "keep_alive": "5m"}))


def write_chat_templates():
    chatml = ("{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
              "{{ '<|start|>system\nBe brief.<|end|>\n' }}{% endif %}"
              "{{ '<|start|>' + message['role'] + '\n' + message['content'] | trim + '<|end|>' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
    tools = ("{%- macro call(t) -%}<call>{{ t.function | tojson }}</call>{%- endmacro -%}"
             "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
             "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}"
             "{% for t in m.tool_calls or [] %}{{ call(t) }}{% endfor %}{% endfor %}{{ ns.n }}")
    refuse = ("{% for m in messages if m.role is defined and m.role not in ['user', 'assistant'] %}"
              "{{ raise_exception('no ' ~ m.role) }}{% endfor %}{{ bos_token }}")
    # What a template keeps of a loop after its end.
    write("chat_template", "kept-loop", "{% set ns = namespace() %}{% set l = [] %}{% for x in [1, 2] %}{% set ns.l = loop %}"
          "{% set ns.c = loop.cycle %}{{ l.append(loop) }}{% endfor %}{{ ns.l.previtem }}{{ ns.c(1, 2) }}{{ l[0].length }}")
    write("chat_template", "methods", "{{ 'a b'.split(' ', 1)[::-1] | join('%s-%d' | format('x', 3)) }}{{ {'a': 1}.items() | list }}"
          "{{ [2, 1] | sort(reverse=true) | map('string') | list }}{{ 'é'.find('x') }}{{ '{}'.format(1.5) | title | indent(2) }}")
    # A text of an empty list has no memory.
    write("chat_template", "empty", "{% set e = [] | join %}{{ e[1:] }}{{ e.split(' ', 1)[::-1] }}{{ e.partition('a') }}{{ e | title | indent(2) }}"
          "{{ e % () }}{{ e ~ e | reverse }}{{ e.find('x') }}{{ e.removeprefix('y') }}{{ 'a'.replace('', e) }}{{ e.format(1) | trim }}")
    write("chat_template", "chatml", chatml)
    write("chat_template", "tools", tools)
    write("chat_template", "refuse", refuse + "\0" + json.dumps([{"role": "user", "content": "a"}]))
    write("chat_template", "work", "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'a' * 999 }}"
          "{% endfor %}{% endfor %}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    write_chat_templates()
    write_models()
    write_sidecars()
    write_less_states()
    write_states()
    write_sessions()
    write_results()
    write_texts()
    write_grammars()
    write_requests()


if __name__ == "__main__":
    main()
