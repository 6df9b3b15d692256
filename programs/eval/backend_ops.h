/* What a kind of backend implements: a context of one model with one kind of KV cache.
 * eval/backend.h describes backends for their users. */
#ifndef LK_EVAL_BACKEND_OPS_H
#define LK_EVAL_BACKEND_OPS_H

#include "eval/model_pair.h"

/* Called after each step with the number of tokens evaluated in it. False cancels. */
typedef bool (*lk_backend_progress)(void *user, double n_tok);

struct lk_backend {
    const struct lk_backend_ops *ops;
    void *self;     /* of the ops */
    const char *kv; /* borrowed from the caller of lk_backend_open */
    int32_t n_ctx;
    size_t n_vocab;
    lk_model *model;              /* lowkey's, for tokens and texts */
    lk_backend_progress progress; /* may be NULL */
    void *user;
    double n_reported; /* tokens of the running prefill that were reported */
};

/* Functions of a kind of backend. eval/backend.h says what each of them does. */
struct lk_backend_ops {
    lk_status (*open)(struct lk_backend *backend, struct lk_model_pair *models, lk_err *err);
    void (*close)(struct lk_backend *backend);
    void (*clear)(struct lk_backend *backend);
    lk_status (*prefill)(struct lk_backend *backend, const int32_t *tok, size_t n, lk_err *err);
    /* Prefill several backends of this kind at once. NULL: one after another. */
    lk_status (*prefill_all)(struct lk_backend *const *backend, size_t n_backend,
                             const int32_t *tok, size_t n, lk_err *err);
    lk_status (*save)(struct lk_backend *backend, lk_err *err);
    lk_status (*restore)(struct lk_backend *backend, lk_err *err);
    /* n is at most LK_EVAL_MAX. */
    lk_status (*eval)(struct lk_backend *backend, const int32_t *tok, size_t n, bool all,
                      lk_err *err);
    const float *(*logits)(const struct lk_backend *backend, int32_t i);
    lk_session_stats (*stats)(const struct lk_backend *backend);
};

/* Report n evaluated tokens. LK_E_CANCELLED if the callback cancels. */
static inline lk_status lk_backend_report(struct lk_backend *backend, double n, lk_err *err) {
    if (backend->progress && !backend->progress(backend->user, n))
        return lk_fail(err, LK_E_CANCELLED, "cancelled");
    return LK_OK;
}

/* libllama's own context with a cache type (backend_llama.c). */
extern const struct lk_backend_ops lk_backend_llama;

#endif
