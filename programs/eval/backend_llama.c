/* libllama's own forward pass and cache as a backend. */
#include "base/cxx_call.h"
#include "eval/backend.h"

#include "llama.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 512 };

struct llama_backend {
    struct llama_context *ctx; /* NULL after libllama ran out of memory: it is not freed then */
    enum ggml_type type;
    int32_t *tok; /* [n_ctx] the tokens in the cache */
    size_t n_tok, n_logits, n_saved;
    float *saved;        /* [n_vocab] logits after n_saved tokens; NULL until the first save */
    const float *logits; /* [n_logits][n_vocab] libllama'backend, or saved */
};

/* The ggml type of a cache type that lk_backend_check accepts. */
static enum ggml_type cache_type(const char *name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name(t) && strcmp(name, ggml_type_name(t)) == 0) return t;
    return GGML_TYPE_F16; /* "plain" */
}

static void llama_backend_close(struct lk_backend *backend) {
    struct llama_backend *self = backend->self;
    if (self->ctx) llama_free(self->ctx);
    free(self->saved);
    free(self->tok);
    free(self);
}

/* Arguments and results of llama_init_from_model. */
struct context_call {
    struct llama_model *model;
    struct llama_context_params params;
    struct llama_context *ctx;
};

/* May throw. */
static void create_context(void *arg) {
    struct context_call *call = arg;
    call->ctx = llama_init_from_model(call->model, call->params);
}

static lk_status llama_backend_open(struct lk_backend *backend, struct lk_model_pair *models,
                                    lk_err *err) {
    const char *name = strchr(backend->kv, ':') + 1;
    struct llama_model *model;
    lk_status status = lk_model_pair_llama(models, &model, err);
    if (status) return status;
    struct llama_backend *self = backend->self = calloc(1, sizeof *self);
    if (self) self->tok = calloc((size_t)backend->n_ctx, sizeof *self->tok);
    if (!self || !self->tok) {
        free(self);
        return lk_fail(err, LK_E_NOMEM, "no memory for a backend");
    }
    struct llama_context_params params = llama_context_default_params();
    self->type = cache_type(name);
    params.n_ctx = (uint32_t)backend->n_ctx;
    params.n_batch = params.n_ubatch = backend->n_ctx < BATCH ? (uint32_t)backend->n_ctx : BATCH;
    params.n_threads = params.n_threads_batch = lk_model_get_info(models->lowkey).n_threads;
    params.type_k = params.type_v = self->type;
    params.flash_attn_type =
        strcmp(name, "plain") == 0 ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    struct context_call call = {.model = model, .params = params};
    status = lk_cxx_compute(create_context, &call, err);
    self->ctx = call.ctx;
    if (self->ctx) return LK_OK;
    llama_backend_close(backend);
    if (status) return status;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "libllama cannot create a %s cache of %d tokens for this model", name,
                   backend->n_ctx);
}

static void llama_backend_clear(struct lk_backend *backend) {
    struct llama_backend *self = backend->self;
    if (self->ctx) llama_memory_clear(llama_get_memory(self->ctx), true);
    self->n_tok = self->n_logits = 0;
}

/* Tokens to evaluate, and what llama_decode says. */
struct decode_call {
    struct llama_backend *self;
    const int32_t *tok;
    size_t n; /* at most BATCH */
    bool all;
    int failed;
};

/* May throw. */
static void decode_tokens(void *arg) {
    struct decode_call *call = arg;
    struct llama_backend *self = call->self;
    llama_seq_id seq = 0, *seq_id[BATCH];
    llama_pos pos[BATCH];
    int32_t n_seq_id[BATCH];
    int8_t logits[BATCH];
    for (size_t i = 0; i < call->n; i++) {
        pos[i] = (int32_t)(self->n_tok + i);
        n_seq_id[i] = 1;
        seq_id[i] = &seq;
        logits[i] = call->all || i + 1 == call->n;
    }
    call->failed = llama_decode(self->ctx, (struct llama_batch){.n_tokens = (int32_t)call->n,
                                                                .token = (int32_t *)call->tok,
                                                                .pos = pos,
                                                                .n_seq_id = n_seq_id,
                                                                .seq_id = seq_id,
                                                                .logits = logits});
    if (!call->failed) self->logits = llama_get_logits(self->ctx);
}

static lk_status llama_backend_eval(struct lk_backend *backend, const int32_t *tok, size_t n,
                                    bool all, lk_err *err) {
    struct llama_backend *self = backend->self;
    if (self->n_tok + n > (size_t)backend->n_ctx)
        return lk_fail(err, LK_E_FULL, "the context of %d tokens is full; use a larger one",
                       backend->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || (size_t)tok[i] >= backend->n_vocab)
            return lk_fail(err, LK_E_ARG, "token %zu is %d; the vocabulary has 0 to %zu", i, tok[i],
                           backend->n_vocab - 1);
    if (!self->ctx) return lk_fail(err, LK_E_NOMEM, "libllama ran out of memory before");
    if (n > BATCH)
        return lk_fail(err, LK_E_ARG, "cannot evaluate %zu tokens at once; give 1 to %d", n, BATCH);
    struct decode_call call = {.self = self, .tok = tok, .n = n, .all = all};
    lk_status status = lk_cxx_compute(decode_tokens, &call, err);
    if (status) self->ctx = NULL; /* its state is unknown */
    if (status || call.failed) llama_backend_clear(backend);
    if (status) return status;
    if (call.failed)
        return lk_fail(err, LK_E_NOMEM, "libllama cannot evaluate %zu tokens (status %d)", n,
                       call.failed);
    memcpy(self->tok + self->n_tok, tok, n * sizeof *tok);
    self->n_tok += n;
    self->n_logits = all ? n : 1;
    return LK_OK;
}

/* Drop all but the first n tokens. False if the cache cannot; it is unchanged then. */
static bool truncate_cache(struct llama_backend *self, size_t n) {
    if (n == 0 || !self->ctx ||
        !llama_memory_seq_rm(llama_get_memory(self->ctx), 0, (int32_t)n, -1))
        return false;
    self->n_tok = n;
    self->n_logits = 0;
    return true;
}

static lk_status llama_backend_prefill(struct lk_backend *backend, const int32_t *tok, size_t n,
                                       lk_err *err) {
    struct llama_backend *self = backend->self;
    size_t n_same = 0;
    if (self->n_tok == n && self->n_logits > 0 && memcmp(self->tok, tok, n * sizeof *tok) == 0)
        return LK_OK;
    while (n_same < self->n_tok && n_same + 1 < n && self->tok[n_same] == tok[n_same]) n_same++;
    if (n_same < self->n_tok && !truncate_cache(self, n_same)) llama_backend_clear(backend);
    while (self->n_tok < n) {
        size_t part = n - self->n_tok < BATCH ? n - self->n_tok : BATCH;
        lk_status status = llama_backend_eval(backend, tok + self->n_tok, part, false, err);
        if (!status) status = lk_backend_report(backend, (double)part, err);
        if (status) return status;
        backend->n_reported += (double)part;
    }
    return LK_OK;
}

static const float *llama_backend_logits(const struct lk_backend *backend, int32_t i) {
    const struct llama_backend *self = backend->self;
    if (i < 0) i += (int32_t)self->n_logits;
    if (i < 0 || (size_t)i >= self->n_logits) return NULL;
    return self->logits + (size_t)i * backend->n_vocab;
}

static lk_status llama_backend_save(struct lk_backend *backend, lk_err *err) {
    struct llama_backend *self = backend->self;
    const float *logits = llama_backend_logits(backend, -1);
    if (!self->saved) self->saved = malloc(backend->n_vocab * sizeof *self->saved);
    if (!self->saved) return lk_fail(err, LK_E_NOMEM, "no memory for logits");
    if (!logits) return lk_fail(err, LK_E_ARG, "no logits to save; prefill first");
    if (logits != self->saved) memcpy(self->saved, logits, backend->n_vocab * sizeof *logits);
    self->n_saved = self->n_tok;
    return LK_OK;
}

static lk_status llama_backend_restore(struct lk_backend *backend, lk_err *err) {
    struct llama_backend *self = backend->self;
    size_t n = self->n_saved;
    if (truncate_cache(self, n)) {
        self->logits = self->saved;
        self->n_logits = 1;
        return LK_OK;
    }
    int32_t *tok = malloc((n + 1) * sizeof *tok);
    if (!tok) return lk_fail(err, LK_E_NOMEM, "no memory for %zu tokens", n);
    memcpy(tok, self->tok, n * sizeof *tok);
    llama_backend_clear(backend);
    lk_status status = llama_backend_prefill(backend, tok, n, err);
    free(tok);
    return status;
}

static lk_session_stats llama_backend_stats(const struct lk_backend *backend) {
    const struct llama_backend *self = backend->self;
    lk_model_info info = lk_model_get_info(backend->model);
    double bits = 8.0 * (double)ggml_type_size(self->type) / (double)ggml_blck_size(self->type);
    double values = (double)info.n_value;
    lk_session_stats stats = {
        .n_tok = self->n_tok, .bits_per_value = bits, .bytes_per_token = bits / 8 * values};
    stats.cache_bytes = (uint64_t)(stats.bytes_per_token * (double)self->n_tok + 0.5);
    stats.f16_bytes = (uint64_t)(2 * values * (double)self->n_tok);
    return stats;
}

const struct lk_backend_ops lk_backend_llama = {
    .open = llama_backend_open,
    .close = llama_backend_close,
    .clear = llama_backend_clear,
    .prefill = llama_backend_prefill,
    .save = llama_backend_save,
    .restore = llama_backend_restore,
    .eval = llama_backend_eval,
    .logits = llama_backend_logits,
    .stats = llama_backend_stats,
};
