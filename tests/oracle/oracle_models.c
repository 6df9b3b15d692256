/* The tiny models of the oracle: all families, and shapes that differ in what a cache sees. */
#include "engine/model.h"
#include "oracle_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY(preset, family, layers, heads, heads_kv, head_dim, ff, ...)                           \
    {                                                                                              \
        .name = preset, .arch = family, .n_layer = layers, .n_head = heads, .n_head_kv = heads_kv, \
        .d_head = head_dim, .n_ff = ff, .n_vocab = 61, .n_ctx = 512, __VA_ARGS__                   \
    }

static const struct tiny_spec specs[] = {
    TINY("llama", "llama", 2, 4, 2, 32, 64, .n_embd = 64, .seed = 1),
    TINY("llama-mha", "llama", 2, 3, 3, 48, 64, .n_embd = 64, .seed = 2, .untied = true,
         .biases = true, .fused = true),
    TINY("llama3", "llama", 2, 4, 1, 64, 64, .n_embd = 64, .seed = 3, .rope_factors = true),
    TINY("llama-linear", "llama", 3, 8, 4, 16, 64, .n_embd = 64, .seed = 4,
         .rope_scaling = "linear", .rope_factor = 4),
    TINY("llama-yarn", "llama", 2, 6, 2, 64, 64, .n_embd = 64, .seed = 5, .rope_scaling = "yarn",
         .rope_factor = 4),
    TINY("qwen2", "qwen2", 3, 6, 2, 32, 64, .n_embd = 64, .seed = 10, .biases = true),
    TINY("qwen3", "qwen3", 2, 4, 2, 64, 64, .n_embd = 96, .seed = 11),
    TINY("gemma3", "gemma3", 7, 4, 1, 64, 64, .n_embd = 64, .seed = 12, .n_swa = 16),
    TINY("gemma3-cap", "gemma3", 7, 4, 2, 32, 64, .n_embd = 64, .seed = 13, .n_swa = 40,
         .softcap = 5, .rope_scaling = "linear", .rope_factor = 8),
    TINY("falcon", "falcon", 2, 5, 1, 32, 64, .n_embd = 64, .seed = 14),
    TINY("falcon-40b", "falcon", 2, 8, 2, 32, 64, .n_embd = 64, .seed = 15, .norm_2 = true,
         .untied = true),
    TINY("bloom", "bloom", 2, 6, 6, 16, 64, .n_embd = 64, .seed = 16),
    TINY("refact", "refact", 2, 6, 3, 16, 64, .n_embd = 64, .seed = 53),
    TINY("qwen3moe", "qwen3moe", 2, 4, 2, 32, 48, .n_embd = 64, .seed = 23, .n_expert = 5,
         .n_expert_used = 2),
    TINY("phi3", "phi3", 2, 4, 2, 32, 64, .n_embd = 128, .seed = 27, .n_rot = 16, .fused = true,
         .rope_scaling = "longrope", .rope_factor = 4),
    TINY("smollm3", "smollm3", 4, 4, 2, 32, 64, .n_embd = 64, .seed = 29),
    TINY("mistral3", "mistral3", 2, 4, 2, 32, 64, .n_embd = 64, .seed = 30, .rope_scaling = "yarn",
         .rope_factor = 16, .scaled = true),
    TINY("granite", "granite", 2, 4, 2, 32, 64, .n_embd = 64, .seed = 31, .scaled = true),
    TINY("olmo3", "olmo2", 4, 4, 2, 32, 64, .seed = 33, .untied = true, .n_swa = 24,
         .rope_scaling = "yarn", .rope_factor = 8),
    TINY("stablelm-12b", "stablelm", 2, 4, 2, 32, 64, .seed = 35, .n_rot = 8, .untied = true,
         .parallel = true),
    TINY("gemma2", "gemma2", 4, 4, 2, 32, 64, .n_embd = 64, .seed = 36, .n_swa = 24, .softcap = 5,
         .attn_softcap = 1),
    TINY("gpt-oss", "gpt-oss", 4, 4, 2, 32, 32, .n_embd = 64, .seed = 37, .n_swa = 24,
         .untied = true, .biases = true, .rope_scaling = "yarn", .rope_factor = 16, .n_expert = 4,
         .n_expert_used = 2),
    TINY("gpt2", "gpt2", 2, 4, 4, 32, 64, .n_embd = 64, .seed = 18),
};

static bool open_model(struct oracle_model *m, const struct tiny_spec *spec) {
    lk_model *opened = NULL;
    lk_err err = {0};
    m->spec = spec;
    snprintf(m->path, sizeof m->path, "/tmp/lowkey-oracle-XXXXXX");
    int fd = mkstemp(m->path);
    if (fd < 0) return false;
    close(fd);
    if (!tiny_gguf_write(m->path, m->spec) || !plain_model_open(&m->plain, m->path) ||
        lk_model_open(&opened, m->path, &(lk_model_opts){.n_threads = 1}, &err) != LK_OK) {
        fprintf(stderr, "%s: %s\n", m->spec->name, err.msg);
        return false;
    }
    m->fingerprint = opened->net->fingerprint;
    lk_model_free(opened);
    return true;
}

bool open_oracle_models(struct oracle_models *models) {
    int n = (int)(sizeof specs / sizeof *specs);
    bool ok = true;
    *models = (struct oracle_models){.model = calloc((size_t)n, sizeof *models->model)};
    for (; ok && models->n < n; models->n++)
        ok = open_model(&models->model[models->n], &specs[models->n]);
    if (!ok) close_oracle_models(models);
    return ok;
}

void close_oracle_models(struct oracle_models *models) {
    for (int i = 0; i < models->n; i++) {
        plain_model_close(&models->model[i].plain);
        if (models->model[i].path[0]) unlink(models->model[i].path);
    }
    free(models->model);
    *models = (struct oracle_models){0};
}
