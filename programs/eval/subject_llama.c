/* libllama's own forward pass and cache as a subject. */
#define _DEFAULT_SOURCE /* mkstemps */
#include "base/log.h"
#include "eval/subject.h"

#include "llama.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 512 };

struct llama_subject {
    struct llama_context *ctx;
    enum ggml_type type;
    int32_t *tok; /* [n_ctx] what the context has seen */
    size_t n_tok, n_logits, n_saved;
    float *saved;        /* [n_vocab] logits behind n_saved tokens; NULL until wanted */
    const float *logits; /* [n_logits][n_vocab] libllama's, or saved */
};

static struct llama_model *load(const char *path) {
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    return llama_model_load_from_file(path, params);
}

/* A copy of the model with every matrix in f32, opened and then removed: the mapping keeps its contents. */
static lk_status load_f32(struct lk_models *models, lk_err *err) {
    char path[1024];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/lowkey-f32-XXXXXX.gguf", dir && *dir ? dir : "/tmp");
    int file = mkstemps(path, 5);
    if (file < 0)
        return lk_fail(err, LK_E_IO, "cannot make a temporary file %s: %s; set TMPDIR", path,
                       strerror(errno));
    close(file);
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    params.nthread = models->opts.n_threads;
    bool made = llama_model_quantize(models->path, path, &params) == 0;
    if (made) models->llama = load(path);
    unlink(path);
    if (!made)
        return lk_fail(err, LK_E_IO,
                       "libllama cannot write an f32 copy of the model in %s; set TMPDIR to a "
                       "folder with room",
                       path);
    return models->llama
               ? LK_OK
               : lk_fail(err, LK_E_UNSUPPORTED, "libllama cannot open its f32 copy of the model");
}

lk_status lk_models_llama(struct lk_models *models, struct llama_model **out, lk_err *err) {
    lk_silence_logs();
    if (!models->llama && models->opts.weights == LK_WEIGHTS_F32) {
        lk_status status = load_f32(models, err);
        if (status != LK_OK) return status;
    }
    if (!models->llama) models->llama = load(models->path);
    if (!models->llama)
        return lk_fail(err, LK_E_UNSUPPORTED, "libllama cannot open %s", models->path);
    *out = models->llama;
    return LK_OK;
}

void lk_models_close(struct lk_models *models) {
    if (models->llama) llama_model_free(models->llama);
    lk_model_free(models->lowkey);
    models->llama = NULL;
    models->lowkey = NULL;
}

static enum ggml_type type_of(const char *name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name(t) && strcmp(name, ggml_type_name(t)) == 0) return t;
    return GGML_TYPE_F16; /* "plain"; the name was checked */
}

static void close_llama(struct lk_subject *s) {
    struct llama_subject *self = s->self;
    if (self->ctx) llama_free(self->ctx);
    free(self->saved);
    free(self->tok);
    free(self);
}

static lk_status open_llama(struct lk_subject *s, struct lk_models *models, lk_err *err) {
    const char *name = strchr(s->kv, ':') + 1;
    struct llama_model *model;
    lk_status status = lk_models_llama(models, &model, err);
    if (status != LK_OK) return status;
    struct llama_subject *self = s->self = calloc(1, sizeof *self);
    if (self) self->tok = calloc((size_t)s->n_ctx, sizeof *self->tok);
    if (!self || !self->tok) {
        free(self);
        return lk_fail(err, LK_E_NOMEM, "no memory for a subject");
    }
    struct llama_context_params params = llama_context_default_params();
    self->type = type_of(name);
    params.n_ctx = (uint32_t)s->n_ctx;
    params.n_batch = params.n_ubatch = s->n_ctx < BATCH ? (uint32_t)s->n_ctx : BATCH;
    params.n_threads = params.n_threads_batch = lk_model_get_info(models->lowkey).n_threads;
    params.type_k = params.type_v = self->type;
    params.flash_attn_type =
        strcmp(name, "plain") == 0 ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    self->ctx = llama_init_from_model(model, params);
    if (self->ctx) return LK_OK;
    close_llama(s);
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "libllama cannot keep this model's cache as %s for %d tokens", name, s->n_ctx);
}

static void clear_llama(struct lk_subject *s) {
    struct llama_subject *self = s->self;
    llama_memory_clear(llama_get_memory(self->ctx), true);
    self->n_tok = self->n_logits = 0;
}

static lk_status decode(struct lk_subject *s, const int32_t *tok, size_t n, bool all, lk_err *err) {
    struct llama_subject *self = s->self;
    if (self->n_tok + n > (size_t)s->n_ctx)
        return lk_fail(err, LK_E_FULL, "the context of %d tokens is full; use a larger one",
                       s->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || (size_t)tok[i] >= s->n_vocab)
            return lk_fail(err, LK_E_ARG, "token %zu is %d; the vocabulary has 0 to %zu", i, tok[i],
                           s->n_vocab - 1);
    struct llama_batch batch = llama_batch_init((int32_t)n, 0, 1);
    batch.n_tokens = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = tok[i];
        batch.pos[i] = (int32_t)(self->n_tok + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all || i + 1 == n;
    }
    int failed = llama_decode(self->ctx, batch);
    llama_batch_free(batch);
    if (failed) {
        clear_llama(s);
        return lk_fail(err, LK_E_NOMEM, "libllama cannot read %zu tokens (status %d)", n, failed);
    }
    memcpy(self->tok + self->n_tok, tok, n * sizeof *tok);
    self->n_tok += n;
    self->n_logits = all ? n : 1;
    self->logits = llama_get_logits(self->ctx);
    return LK_OK;
}

/* Forget all but the first n tokens; false where the cache cannot, which then is as it was. */
static bool cut(struct llama_subject *self, size_t n) {
    if (n == 0 || !llama_memory_seq_rm(llama_get_memory(self->ctx), 0, (int32_t)n, -1))
        return false;
    self->n_tok = n;
    self->n_logits = 0;
    return true;
}

static lk_status prompt_llama(struct lk_subject *s, const int32_t *tok, size_t n, lk_err *err) {
    struct llama_subject *self = s->self;
    size_t same = 0;
    if (self->n_tok == n && self->n_logits > 0 && memcmp(self->tok, tok, n * sizeof *tok) == 0)
        return LK_OK;
    while (same < self->n_tok && same + 1 < n && self->tok[same] == tok[same]) same++;
    if (same < self->n_tok && !cut(self, same)) clear_llama(s);
    while (self->n_tok < n) {
        size_t part = n - self->n_tok < BATCH ? n - self->n_tok : BATCH;
        lk_status status = decode(s, tok + self->n_tok, part, false, err);
        if (status == LK_OK) status = lk_subject_tick(s, (double)part, err);
        if (status != LK_OK) return status;
        s->ticked += (double)part;
    }
    return LK_OK;
}

static const float *logits_llama(const struct lk_subject *s, int32_t i) {
    const struct llama_subject *self = s->self;
    if (i < 0) i += (int32_t)self->n_logits;
    if (i < 0 || (size_t)i >= self->n_logits) return NULL;
    return self->logits + (size_t)i * s->n_vocab;
}

static lk_status save_llama(struct lk_subject *s, lk_err *err) {
    struct llama_subject *self = s->self;
    const float *logits = logits_llama(s, -1);
    if (!self->saved) self->saved = malloc(s->n_vocab * sizeof *self->saved);
    if (!self->saved) return lk_fail(err, LK_E_NOMEM, "no memory for logits");
    if (!logits) return lk_fail(err, LK_E_ARG, "nothing was read that could be returned to");
    if (logits != self->saved) memcpy(self->saved, logits, s->n_vocab * sizeof *logits);
    self->n_saved = self->n_tok;
    return LK_OK;
}

static lk_status restore_llama(struct lk_subject *s, lk_err *err) {
    struct llama_subject *self = s->self;
    size_t n = self->n_saved;
    if (cut(self, n)) {
        self->logits = self->saved;
        self->n_logits = 1;
        return LK_OK;
    }
    int32_t *tok = malloc((n + 1) * sizeof *tok);
    if (!tok) return lk_fail(err, LK_E_NOMEM, "no memory for %zu tokens", n);
    memcpy(tok, self->tok, n * sizeof *tok);
    clear_llama(s);
    lk_status status = prompt_llama(s, tok, n, err);
    free(tok);
    return status;
}

static lk_session_stats stats_llama(const struct lk_subject *s) {
    const struct llama_subject *self = s->self;
    lk_model_info info = lk_model_get_info(s->model);
    double bits = 8.0 * (double)ggml_type_size(self->type) / (double)ggml_blck_size(self->type);
    double values = 2.0 * info.n_layer * info.n_head_kv * info.d_head;
    lk_session_stats stats = {
        .n_tok = self->n_tok, .bits_per_value = bits, .bytes_per_token = bits / 8 * values};
    stats.cache_bytes = (uint64_t)(stats.bytes_per_token * (double)self->n_tok + 0.5);
    stats.f16_bytes = (uint64_t)(2 * values * (double)self->n_tok);
    return stats;
}

const struct lk_subject_kind lk_subject_llama = {
    .open = open_llama,
    .close = close_llama,
    .clear = clear_llama,
    .prompt = prompt_llama,
    .save = save_llama,
    .restore = restore_llama,
    .read = decode,
    .logits = logits_llama,
    .stats = stats_llama,
};
