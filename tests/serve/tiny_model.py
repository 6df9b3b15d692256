"""Writes a tiny random chat model as a GGUF file, so that a server can be attacked within a second.

The architecture is Qwen 2's with two layers; the vocabulary is byte-level BPE. It has what attacks
need: a token "[[", a user-defined token of LONG_TOKEN bytes, a chat template, and a long
context. Files with the same arguments are equal.
"""
import array
import random
import struct

LONG_TOKEN = 600  # bytes
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
ALIGNMENT = 32
N_LAYER, N_HEAD, N_HEAD_KV, D_HEAD, N_FF = 2, 2, 1, 64, 256
N_EMBD = N_HEAD * D_HEAD
MERGES = ["h e", "l l", "he ll", "[ [", "{ \"", "Ġ Ġ"]
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
            "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}")


def byte_letters():
    """The letter that stands for each byte in byte-level BPE."""
    letters, spare = [], 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        letters.append(chr(byte if printable else spare))
        spare += not printable
    return letters


def vocabulary(words=()):
    """`words`: more tokens, which are found in any text."""
    tokens = byte_letters() + [merge.replace(" ", "") for merge in MERGES]
    types = [NORMAL] * len(tokens) + [USER_DEFINED] * len(words)
    tokens += [*words, "LONG" * (LONG_TOKEN // 4), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return tokens, types + [USER_DEFINED] + [CONTROL] * 3


def pack_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    if kind == STRING:
        return struct.pack("<I", kind) + pack_string(value)
    return struct.pack("<I" + {U32: "I", F32: "f", BOOL: "?", U64: "Q"}[kind], kind, value)


def pack_array(kind, values):
    head = struct.pack("<IIQ", ARRAY, kind, len(values))
    pack = pack_string if kind == STRING else lambda value: struct.pack("<i", value)
    return head + b"".join(map(pack, values))


def metadata(n_ctx, template=TEMPLATE, words=()):
    tokens, types = vocabulary(words)
    numbers = {"vocab_size": len(tokens), "context_length": n_ctx, "embedding_length": N_EMBD,
               "block_count": N_LAYER, "feed_forward_length": N_FF, "attention.head_count": N_HEAD,
               "attention.head_count_kv": N_HEAD_KV, "attention.key_length": D_HEAD,
               "attention.value_length": D_HEAD, "rope.dimension_count": D_HEAD}
    entries = {"general.architecture": pack_value(STRING, "qwen2"),
               "general.name": pack_value(STRING, "tiny")}
    entries |= {"qwen2." + name: pack_value(U32, value) for name, value in numbers.items()}
    entries |= {"qwen2.attention.layer_norm_rms_epsilon": pack_value(F32, 1e-5),
                "qwen2.rope.freq_base": pack_value(F32, 50000.0),
                "tokenizer.ggml.model": pack_value(STRING, "gpt2"),
                "tokenizer.ggml.pre": pack_value(STRING, "qwen2"),
                "tokenizer.ggml.tokens": pack_array(STRING, tokens),
                "tokenizer.ggml.token_type": pack_array(I32, types),
                "tokenizer.ggml.merges": pack_array(STRING, MERGES),
                "tokenizer.ggml.eos_token_id": pack_value(U32, len(tokens) - 1),
                "tokenizer.ggml.add_bos_token": pack_value(BOOL, False),
                "tokenizer.chat_template": pack_value(STRING, template)}
    return entries


def tensors(words=()):
    """(name, shape with the fastest dimension first, standard deviation); 1-d: a norm or a bias."""
    n_vocab, n_kv = len(vocabulary(words)[0]), N_HEAD_KV * D_HEAD
    out = [("token_embd.weight", (N_EMBD, n_vocab), 0.5), ("output_norm.weight", (N_EMBD,), 0)]
    for layer in range(N_LAYER):
        parts = [("attn_q", (N_EMBD, N_EMBD)), ("attn_k", (N_EMBD, n_kv)),
                 ("attn_v", (N_EMBD, n_kv)), ("attn_output", (N_EMBD, N_EMBD)),
                 ("ffn_gate", (N_EMBD, N_FF)), ("ffn_up", (N_EMBD, N_FF)),
                 ("ffn_down", (N_FF, N_EMBD)), ("attn_norm", (N_EMBD,)), ("ffn_norm", (N_EMBD,))]
        out += [(f"blk.{layer}.{name}.weight", shape, shape[0] ** -0.5) for name, shape in parts]
        biases = [("attn_q", N_EMBD), ("attn_k", n_kv), ("attn_v", n_kv)]
        out += [(f"blk.{layer}.{name}.bias", (n,), 0) for name, n in biases]
    return out


def tensor_data(rng, name, shape, deviation):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if len(shape) == 1:
        return array.array("f", [0.0 if name.endswith("bias") else 1.0] * n).tobytes()
    return array.array("f", [rng.gauss(0, deviation) for _ in range(n)]).tobytes()


def align(data):
    return data + bytes(-len(data) % ALIGNMENT)


def gguf_bytes(entries, parts):
    """A GGUF file. entries: packed values by key. parts: (name, shape, ggml type, data)."""
    infos, all_data = b"", b""
    for name, shape, kind, data in parts:
        infos += pack_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", kind, len(all_data))
        all_data += align(data)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(entries))
    head += b"".join(pack_string(key) + value for key, value in entries.items())
    return align(head + infos) + all_data


def write_model(path, n_ctx=16384, seed=1, template=TEMPLATE, words=()):
    rng = random.Random(seed)
    parts = [(name, shape, 0, tensor_data(rng, name, shape, deviation))
             for name, shape, deviation in tensors(words)]
    with open(path, "wb") as file:
        file.write(gguf_bytes(metadata(n_ctx, template, words), parts))
