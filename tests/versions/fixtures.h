/* The saved sessions in tests/versions: what each holds. Rows are added, not changed: the files of
 * earlier versions follow this table. */
#ifndef LK_TESTS_FIXTURES_H
#define LK_TESTS_FIXTURES_H

#include "lowkey.h"
#include "support_sidecar.h"
#include "tiny_gguf.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    const char *name, *preset, *recipe; /* preset: of tiny_presets.h */
    bool sidecar;                       /* its recipe reads one */
    int32_t n_checkpoint;
};

enum { FIXTURE_TOK = 45, FIXTURE_PART = 30, FIXTURE_SEED = 5, FIXTURE_CTX = 256 };

static const struct fixture fixtures[] = {
    {"f16", "llama-q8_0", "all: f16", false, 0},
    {"rot", "llama-q8_0", "sink 1: f16; body: k=rot3 v=rot2; window 4: rot8", false, 0},
    {"recent", "llama-q8_0", "sink 1: f16; body: rot2; recent 50%: rot4; window 4: f16", false, 0},
    {"trellis", "llama-q8_0", "sink 1: f16; body: rot2(trellis); window 4: f16", false, 0},
    {"kivi", "llama-q8_0", "body: kivi2; residual 32: f16", false, 0},
    {"asym", "llama-q8_0", "all: asym4", false, 0},
    {"int8", "llama-q8_0", "sink 1: f16; body: int8; window 4: f16", false, 0},
    {"shift", "llama-q8_0", "sink 2(shift): f16; body: none; window 8: f16", false, 0},
    {"h2o", "llama-q8_0", "keep 8 by h2o: f16; window 8: f16", false, 0},
    {"tova", "llama-q8_0", "keep 15 by tova: f16; window 1: f16", false, 0},
    {"read", "llama-q8_0", "all: f16; read 50%", false, 0},
    {"latents", "llama-q8_0", "all: k=latent50%(pre)+rot3(nomean,nosigma) v=latent50%+rot3", true,
     0},
    {"absorb", "llama-q8_0", "sink 2: f16; body: none; absorb less; window 8: f16", true, 0},
    {"windows", "gpt-oss-mxfp4", "all: f16", false, 0},
    {"convolutions", "lfm2-q8_0", "all: f16", false, 0},
    {"recurrent", "granitehybrid-moe", "all: f16", false, 0},
    {"latent-attention", "deepseek2-q8_0", "all: f16", false, 0},
    {"checkpoints", "llama-q8_0", "sink 1: f16; body: rot3; window 4: f16", false, 4},
};

enum { N_FIXTURE = sizeof fixtures / sizeof fixtures[0] };

/* The tokens of every fixture. */
static inline void fixture_tokens(int32_t tok[FIXTURE_TOK]) {
    uint32_t state = FIXTURE_SEED;
    for (int i = 0; i < FIXTURE_TOK; i++) {
        state = state * 1664525u + 1013904223u;
        tok[i] = 3 + (int32_t)((state >> 16) % 250);
    }
}

/* Write the model and its sidecar to DIR, open them, and remove the files. Small shapes keep the
 * sessions small. */
static inline lk_status fixture_open(lk_model **model, const char *dir, const struct fixture *f,
                                     lk_err *err) {
    char path[4096], sidecar[4096];
    struct tiny_spec spec = *tiny_preset(f->preset);
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    snprintf(sidecar, sizeof sidecar, "%s/sidecar.gguf", dir);
    spec.n_ctx = FIXTURE_CTX;
    if (strcmp(spec.name, "llama-q8_0") == 0) spec.n_layer = spec.n_head_kv = 1;
    if (strcmp(spec.name, "gpt-oss-mxfp4") == 0) spec.n_head_kv = 1;
    lk_model_opts opts = {.n_threads = 1, .sidecar = f->sidecar ? sidecar : NULL};
    bool made = tiny_gguf_write(path, &spec) &&
                (!f->sidecar || write_sidecar_for(sidecar, path, FIXTURE_SEED));
    lk_status status = made ? lk_model_open(model, path, &opts, err) : LK_E_IO;
    unlink(path);
    unlink(sidecar);
    return status;
}

/* Make a session hold the tokens, a part first. */
static inline lk_status fixture_fill(lk_session *session, lk_err *err) {
    int32_t tok[FIXTURE_TOK];
    fixture_tokens(tok);
    lk_status status = lk_session_sync(session, tok, FIXTURE_PART, NULL, err);
    return status ? status : lk_session_sync(session, tok, FIXTURE_TOK, NULL, err);
}

#endif
