#!/usr/bin/env python3
"""Write a small random model whose layers are mostly recurrent (Qwen 3.5's architecture), for bench/reuse.

usage: bench/support/random_hybrid.py FILE

Three of four layers have a delta-net state, the fourth has attention. The vocabulary is byte-level. Only capital letters
and digits can follow, which no merge joins: a server that tokenizes an answer again gets the same tokens.
"""
import array
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "serve"))
import tiny_model as tiny  # pylint: disable=wrong-import-position

ARCH, N_LAYER, N_EMBD, N_FF, N_CTX = "qwen35", 4, 128, 256, 65536
N_HEAD, N_HEAD_KV, D_HEAD = 2, 1, 64
N_KEY_HEAD, N_VALUE_HEAD, D_STATE, N_CONV = 2, 2, 64, 4


def metadata():
    entries = {"general.architecture": tiny.pack_value(tiny.STRING, ARCH)}
    numbers = {"context_length": N_CTX, "embedding_length": N_EMBD, "block_count": N_LAYER, "feed_forward_length": N_FF,
               "attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV, "attention.key_length": D_HEAD,
               "attention.value_length": D_HEAD, "rope.dimension_count": D_HEAD, "ssm.conv_kernel": N_CONV,
               "ssm.state_size": D_STATE, "ssm.group_count": N_KEY_HEAD, "ssm.time_step_rank": N_VALUE_HEAD,
               "ssm.inner_size": N_VALUE_HEAD * D_STATE, "full_attention_interval": 4}
    entries |= {f"{ARCH}.{name}": tiny.pack_value(tiny.U32, value) for name, value in numbers.items()}
    entries |= {f"{ARCH}.attention.layer_norm_rms_epsilon": tiny.pack_value(tiny.F32, 1e-5),
                f"{ARCH}.rope.freq_base": tiny.pack_value(tiny.F32, 50000.0),
                f"{ARCH}.rope.dimension_sections": tiny.pack_array(tiny.I32, [11, 11, 10, 0])}
    of_vocabulary = tiny.metadata(N_CTX)
    return entries | {key: value for key, value in of_vocabulary.items() if key.startswith("tokenizer.")}


def tensors():
    """(name, shape with the fastest dimension first, mean, standard deviation)"""
    n_value, n_kv = N_VALUE_HEAD * D_STATE, N_HEAD_KV * D_HEAD
    channels, n_vocab = n_value + 2 * N_KEY_HEAD * D_STATE, len(tiny.vocabulary()[0])
    out = [("token_embd.weight", (N_EMBD, n_vocab), 0, 0.5), ("output.weight", (N_EMBD, n_vocab), 0, 0.2),
           ("output_norm.weight", (N_EMBD,), 1, 0)]
    for layer in range(N_LAYER):
        matrices = {"ffn_gate": (N_EMBD, N_FF), "ffn_up": (N_EMBD, N_FF), "ffn_down": (N_FF, N_EMBD)}
        others = [("attn_norm.weight", (N_EMBD,), 1, 0), ("post_attention_norm.weight", (N_EMBD,), 1, 0)]
        if layer % 4 == 3:
            matrices |= {"attn_q": (N_EMBD, 2 * N_HEAD * D_HEAD), "attn_k": (N_EMBD, n_kv), "attn_v": (N_EMBD, n_kv),
                         "attn_output": (N_HEAD * D_HEAD, N_EMBD)}
            others += [("attn_q_norm.weight", (D_HEAD,), 1, 0), ("attn_k_norm.weight", (D_HEAD,), 1, 0)]
        else:
            matrices |= {"attn_qkv": (N_EMBD, channels), "attn_gate": (N_EMBD, n_value), "ssm_out": (n_value, N_EMBD),
                         "ssm_beta": (N_EMBD, N_VALUE_HEAD), "ssm_alpha": (N_EMBD, N_VALUE_HEAD)}
            others += [("ssm_conv1d.weight", (N_CONV, channels), 0, 0.5), ("ssm_dt.bias", (N_VALUE_HEAD,), 0, 0.2),
                       ("ssm_a", (N_VALUE_HEAD,), -0.3, 0.1), ("ssm_norm.weight", (D_STATE,), 1, 0)]
        out += [(f"blk.{layer}.{name}.weight", shape, 0, shape[0] ** -0.5) for name, shape in matrices.items()]
        out += [(f"blk.{layer}.{name}", shape, mean, deviation) for name, shape, mean, deviation in others]
    return out


def tensor_data(rng, name, shape, mean, deviation):
    n_row = shape[1] if len(shape) > 1 else 1
    rows = [[rng.gauss(mean, deviation) for _ in range(shape[0])] for _ in range(n_row)]
    if name == "output.weight":
        tokens = tiny.vocabulary()[0]
        rows = [row if len(text) == 1 and (text.isdigit() or "A" <= text <= "Z") else [0.0] * shape[0]
                for row, text in zip(rows, tokens)]
    return array.array("f", [value for row in rows for value in row]).tobytes()


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    rng = random.Random(1)
    parts = [(name, shape, 0, tensor_data(rng, name, shape, mean, deviation))
             for name, shape, mean, deviation in tensors()]
    with open(sys.argv[1], "wb") as file:
        file.write(tiny.gguf_bytes(metadata(), parts))


main()
