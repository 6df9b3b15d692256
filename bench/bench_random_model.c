/* Writes a model with random weights and the shape of a real one, to measure speed. Its text means
 * nothing.
 *
 *   build/bench/random_model SHAPE TYPE FILE [LAYERS [KV_HEADS [SIDECAR]]]
 *   build/bench/random_model qwen3moe q4_K qwen3moe.gguf
 *
 * SHAPE is one of:
 *   qwen3moe   layers of Qwen3-30B-A3B of half the width: 12 layers, 4 of 32 experts; 1.1 billion
 *              parameters
 *   qwen35     about Qwen3.5-0.8B, a hybrid: 18 of 24 layers are recurrent; 0.75 billion parameters
 *   qwen35-8   8 of its layers, 6 of them recurrent, and few tokens
 *   qwen3-8    8 layers of Qwen3-0.6B, and few tokens
 *   llama3-1b  Llama-3.2-1B
 *   qwen2-1.5b Qwen2.5-1.5B
 *   qwen3-4b   Qwen3-4B
 *   llama3-8b, llama2-7b, llama2-13b
 *   tiny       2 layers with heads of 128 channels, to try a command
 *
 * TYPE is that of the matrices in ggml's words: f16, q8_0, q4_0, q4_K; or q4_K_M: the embeddings,
 * and two matrices of every second layer, are q6_K. Most tokens have no text. The rows of a matrix
 * repeat after the first 512. LAYERS and KV_HEADS of 0 are the shape's. All but the embeddings is
 * linear in the layers, so 2 and 4 layers show what a layer costs.
 * SIDECAR is a file for random bases of groups of two KV heads and random LESS networks. */
#include "support_sidecar.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tiny_spec shapes[] = {
    {.name = "qwen3moe",
     .arch = "qwen3moe",
     .n_layer = 12,
     .n_head = 16,
     .n_head_kv = 4,
     .d_head = 128,
     .n_embd = 1024,
     .n_ff = 768,
     .n_vocab = 151936,
     .n_ctx = 32768,
     .n_expert = 32,
     .n_expert_used = 4,
     .untied = true,
     .tokenizer = TINY_BPE,
     .mib = 4096,
     .seed = 1},
    {.name = "qwen35",
     .arch = "qwen35",
     .n_layer = 24,
     .n_head = 8,
     .n_head_kv = 2,
     .d_head = 256,
     .n_rot = 64,
     .n_embd = 1024,
     .n_ff = 3584,
     .n_vocab = 248320,
     .n_ctx = 32768,
     .n_k_head = 16,
     .n_v_head = 16,
     .d_state = 128,
     .tokenizer = TINY_BPE,
     .mib = 4096,
     .seed = 2},
    {.name = "qwen35-8",
     .arch = "qwen35",
     .n_layer = 8,
     .n_head = 8,
     .n_head_kv = 2,
     .d_head = 256,
     .n_rot = 64,
     .n_embd = 1024,
     .n_ff = 3584,
     .n_vocab = 4096,
     .n_ctx = 65536,
     .n_k_head = 16,
     .n_v_head = 16,
     .d_state = 128,
     .mib = 1024,
     .seed = 1},
    {.name = "qwen3-8",
     .arch = "qwen3",
     .n_layer = 8,
     .n_head = 16,
     .n_head_kv = 8,
     .d_head = 128,
     .n_embd = 1024,
     .n_ff = 3072,
     .n_vocab = 4096,
     .n_ctx = 65536,
     .mib = 1024,
     .seed = 1},
    {.name = "llama3-1b",
     .arch = "llama",
     .n_layer = 16,
     .n_head = 32,
     .n_head_kv = 8,
     .d_head = 64,
     .n_embd = 2048,
     .n_ff = 8192,
     .n_vocab = 128256,
     .n_ctx = 131072,
     .tokenizer = TINY_BPE,
     .mib = 2048,
     .seed = 1},
    {.name = "qwen2-1.5b",
     .arch = "qwen2",
     .biases = true,
     .n_layer = 28,
     .n_head = 12,
     .n_head_kv = 2,
     .d_head = 128,
     .n_embd = 1536,
     .n_ff = 8960,
     .n_vocab = 151936,
     .n_ctx = 32768,
     .tokenizer = TINY_BPE,
     .mib = 2048,
     .seed = 1},
    {.name = "qwen3-4b",
     .arch = "qwen3",
     .n_layer = 36,
     .n_head = 32,
     .n_head_kv = 8,
     .d_head = 128,
     .n_embd = 2560,
     .n_ff = 9728,
     .n_vocab = 151936,
     .n_ctx = 131072,
     .tokenizer = TINY_BPE,
     .mib = 4096,
     .seed = 1},
    {.name = "llama3-8b",
     .arch = "llama",
     .n_layer = 32,
     .n_head = 32,
     .n_head_kv = 8,
     .d_head = 128,
     .n_embd = 4096,
     .n_ff = 14336,
     .n_vocab = 128256,
     .n_ctx = 131072,
     .untied = true,
     .tokenizer = TINY_BPE,
     .mib = 6144,
     .seed = 1},
    {.name = "llama2-7b",
     .arch = "llama",
     .n_layer = 32,
     .n_head = 32,
     .n_head_kv = 32,
     .d_head = 128,
     .n_embd = 4096,
     .n_ff = 11008,
     .n_vocab = 32000,
     .n_ctx = 131072,
     .untied = true,
     .tokenizer = TINY_BPE,
     .mib = 6144,
     .seed = 1},
    {.name = "llama2-13b",
     .arch = "llama",
     .n_layer = 40,
     .n_head = 40,
     .n_head_kv = 40,
     .d_head = 128,
     .n_embd = 5120,
     .n_ff = 13824,
     .n_vocab = 32000,
     .n_ctx = 131072,
     .untied = true,
     .tokenizer = TINY_BPE,
     .mib = 10240,
     .seed = 1},
    {.name = "tiny",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 8,
     .n_head_kv = 2,
     .d_head = 128,
     .n_embd = 256,
     .n_ff = 512,
     .n_vocab = 4096,
     .n_ctx = 131072,
     .untied = true,
     .tokenizer = TINY_BPE,
     .mib = 64,
     .seed = 1},
};

static enum ggml_type find_type(const char *name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        if (ggml_type_name(type) && strcmp(ggml_type_name(type), name) == 0) return type;
    return GGML_TYPE_COUNT;
}

int main(int argc, char **argv) {
    const struct tiny_spec *found = NULL;
    bool right = argc >= 4 && argc <= 7;
    for (size_t i = 0; right && i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, argv[1]) == 0) found = &shapes[i];
    bool mixed = right && strcmp(argv[2], "q4_K_M") == 0;
    enum ggml_type type = mixed ? GGML_TYPE_Q4_K : right ? find_type(argv[2]) : GGML_TYPE_COUNT;
    if (!found || type == GGML_TYPE_COUNT) {
        fprintf(stderr, "usage: build/bench/random_model SHAPE TYPE FILE [LAYERS [KV_HEADS "
                        "[SIDECAR]]]\nshapes:");
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            fprintf(stderr, " %s", shapes[i].name);
        fprintf(stderr, "\ntypes: f16, q8_0, q4_0, q4_K, q4_K_M\n");
        return 1;
    }
    struct tiny_spec spec = *found;
    spec.type = type;
    spec.mixed = mixed;
    int n_layer = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 0,
        n_head_kv = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 0;
    if (n_layer > 0) spec.n_layer = n_layer;
    if (n_head_kv > 0) spec.n_head_kv = n_head_kv;
    if (!tiny_gguf_write(argv[3], &spec))
        return fprintf(stderr, "random_model: cannot write %s\n", argv[3]), 1;
    if (argc > 6 && !write_sidecar_for(argv[6], argv[3], spec.seed))
        return fprintf(stderr, "random_model: cannot write %s\n", argv[6]), 1;
    return 0;
}
