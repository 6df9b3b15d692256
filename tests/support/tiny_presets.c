/* Presets of tiny models: one per family and shape worth testing. */
#include "tiny_presets.h"

#include <string.h>

#define PRESET(preset, family, layers, heads, heads_kv, head_dim, ff, vocab, ctx, ...)             \
    {                                                                                              \
        .name = preset, .arch = family, .n_layer = layers, .n_head = heads, .n_head_kv = heads_kv, \
        .d_head = head_dim, .n_ff = ff, .n_vocab = vocab, .n_ctx = ctx, __VA_ARGS__                \
    }

const struct tiny_spec tiny_presets[] = {
    PRESET("llama", "llama", 2, 6, 2, 64, 256, 320, 256, .seed = 1),
    PRESET("llama-mha", "llama", 2, 4, 4, 80, 256, 320, 256, .seed = 2, .untied = true,
           .biases = true),
    PRESET("llama3", "llama", 2, 4, 1, 128, 256, 320, 256, .seed = 3, .rope_factors = true),
    PRESET("llama-96", "llama", 2, 4, 2, 96, 256, 320, 256, .seed = 4, .n_embd = 256,
           .rope_scaling = "linear", .rope_factor = 4, .fused = true),
    PRESET("llama-yarn", "llama", 2, 4, 2, 64, 256, 320, 256, .seed = 5, .rope_scaling = "yarn",
           .rope_factor = 4),
    PRESET("llama-q4_0", "llama", 2, 4, 2, 64, 256, 320, 256, .seed = 6, .type = GGML_TYPE_Q4_0),
    PRESET("llama-q8_0", "llama", 2, 4, 2, 64, 256, 320, 256, .seed = 7, .type = GGML_TYPE_Q8_0),
    PRESET("llama-q4_K", "llama", 2, 4, 2, 64, 256, 320, 256, .seed = 8, .type = GGML_TYPE_Q4_K),
    PRESET("llama-f16", "llama", 2, 4, 2, 64, 256, 320, 256, .seed = 9, .type = GGML_TYPE_F16),
    PRESET("qwen2", "qwen2", 3, 6, 2, 64, 256, 320, 256, .seed = 10, .biases = true),
    PRESET("qwen3", "qwen3", 2, 4, 2, 128, 256, 320, 256, .seed = 11, .n_embd = 256),
    PRESET("gemma3", "gemma3", 7, 4, 1, 256, 256, 320, 256, .seed = 12, .n_embd = 320, .n_swa = 16),
    PRESET("gemma3-cap", "gemma3", 7, 4, 2, 64, 256, 320, 256, .seed = 13, .n_embd = 256,
           .n_swa = 16, .softcap = 5, .rope_scaling = "linear", .rope_factor = 8),
    PRESET("falcon", "falcon", 2, 5, 1, 64, 512, 320, 256, .seed = 14),
    PRESET("falcon-40b", "falcon", 2, 8, 2, 64, 512, 320, 256, .seed = 15, .norm_2 = true,
           .untied = true),
    PRESET("bloom", "bloom", 2, 6, 6, 64, 512, 320, 256, .seed = 16),
    PRESET("bloom-96", "bloom", 2, 4, 4, 96, 512, 320, 256, .seed = 17),
    PRESET("gpt2", "gpt2", 2, 4, 4, 64, 512, 320, 128, .seed = 18),
    PRESET("gpt2-80", "gpt2", 2, 4, 4, 80, 512, 320, 128, .seed = 19, .untied = true),
    PRESET("qwen35", "qwen35", 5, 4, 2, 64, 256, 320, 256, .seed = 23, .n_embd = 320, .n_k_head = 2,
           .n_v_head = 4, .d_state = 32),
    PRESET("qwen35-q8_0", "qwen35", 4, 4, 1, 64, 256, 320, 256, .seed = 24, .n_k_head = 3,
           .n_v_head = 3, .d_state = 32, .untied = true, .type = GGML_TYPE_Q8_0),
    PRESET("qwen35moe", "qwen35moe", 5, 4, 2, 64, 96, 320, 256, .seed = 39, .n_embd = 192,
           .n_k_head = 2, .n_v_head = 4, .d_state = 32, .n_expert = 6, .n_expert_used = 2),
    PRESET("qwen35moe-q8_0", "qwen35moe", 4, 4, 1, 64, 64, 320, 256, .seed = 40, .n_k_head = 3,
           .n_v_head = 3, .d_state = 32, .untied = true, .n_expert = 4, .n_expert_used = 2,
           .type = GGML_TYPE_Q8_0),
    PRESET("qwen3next", "qwen3next", 4, 4, 2, 64, 96, 320, 256, .seed = 41, .n_embd = 192,
           .n_k_head = 2, .n_v_head = 6, .d_state = 32, .n_expert = 6, .n_expert_used = 2),
    PRESET("llama-spm", "llama", 2, 4, 2, 64, 256, 0, 256, .seed = 20, .tokenizer = TINY_SPM),
    PRESET("qwen2-bpe", "qwen2", 2, 4, 2, 64, 256, 0, 256, .seed = 21, .biases = true,
           .tokenizer = TINY_BPE),
    PRESET("qwen2-q4_1", "qwen2", 2, 4, 2, 64, 2112, 328, 256, .seed = 22, .untied = true,
           .biases = true, .type = GGML_TYPE_Q4_1),
    PRESET("qwen3moe", "qwen3moe", 2, 4, 2, 64, 96, 320, 256, .seed = 23, .n_expert = 8,
           .n_expert_used = 3),
    PRESET("qwen3moe-q4_0", "qwen3moe", 2, 4, 2, 64, 128, 320, 256, .seed = 24, .n_expert = 6,
           .n_expert_used = 2, .type = GGML_TYPE_Q4_0),
    PRESET("qwen3moe-q4_K", "qwen3moe", 2, 4, 2, 64, 256, 320, 256, .seed = 25, .n_expert = 4,
           .n_expert_used = 4, .type = GGML_TYPE_Q4_K, .untied = true),
    PRESET("mixtral", "llama", 2, 4, 2, 64, 128, 320, 256, .seed = 26, .n_expert = 4,
           .n_expert_used = 2),
    PRESET("phi3", "phi3", 2, 4, 2, 64, 256, 320, 256, .seed = 27, .fused = true, .untied = true),
    PRESET("phi3-long", "phi3", 2, 4, 2, 64, 256, 320, 256, .seed = 28, .n_rot = 48, .fused = true,
           .rope_scaling = "longrope", .rope_factor = 4),
    PRESET("phi3-short", "phi3", 2, 4, 2, 64, 256, 320, 2048, .seed = 28, .untied = true,
           .rope_scaling = "longrope", .rope_factor = 1),
    PRESET("smollm3", "smollm3", 5, 4, 2, 64, 256, 320, 256, .seed = 29),
    PRESET("mistral3", "mistral3", 2, 4, 2, 64, 256, 320, 128, .seed = 30, .n_embd = 192,
           .rope_scaling = "yarn", .rope_factor = 16, .scaled = true),
    PRESET("granite", "granite", 2, 4, 2, 64, 256, 320, 256, .seed = 31, .scaled = true),
    PRESET("olmo2", "olmo2", 2, 4, 2, 64, 256, 320, 256, .seed = 32, .untied = true),
    PRESET("olmo3", "olmo2", 5, 4, 2, 64, 256, 320, 128, .seed = 33, .untied = true, .n_swa = 16,
           .rope_scaling = "yarn", .rope_factor = 8),
    PRESET("stablelm", "stablelm", 2, 4, 4, 64, 256, 320, 256, .seed = 34, .n_rot = 16,
           .untied = true, .biases = true),
    PRESET("stablelm-12b", "stablelm", 2, 4, 2, 64, 256, 320, 256, .seed = 35, .n_rot = 16,
           .untied = true, .parallel = true),
    PRESET("gemma2", "gemma2", 4, 4, 2, 64, 256, 320, 256, .seed = 36, .n_embd = 256, .n_swa = 16,
           .softcap = 5, .attn_softcap = 2),
    PRESET("gpt-oss", "gpt-oss", 4, 4, 2, 64, 96, 320, 128, .seed = 37, .n_embd = 192, .n_swa = 16,
           .untied = true, .biases = true, .rope_scaling = "yarn", .rope_factor = 32, .n_expert = 6,
           .n_expert_used = 2),
    PRESET("gpt-oss-mxfp4", "gpt-oss", 2, 4, 2, 64, 128, 320, 256, .seed = 38, .n_swa = 16,
           .untied = true, .biases = true, .n_expert = 4, .n_expert_used = 2,
           .type = GGML_TYPE_MXFP4),
    {0},
};

const struct tiny_spec *tiny_preset(const char *name) {
    for (const struct tiny_spec *s = tiny_presets; s->name; s++)
        if (strcmp(s->name, name) == 0) return s;
    return NULL;
}
