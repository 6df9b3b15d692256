/* Backends: the systems that are evaluated. A backend evaluates tokens with one kind of KV cache
 * and predicts the next token.
 *
 *   KV                 backend
 *   a recipe           a lowkey session with this recipe
 *   llama.cpp:TYPE     libllama's own context with K and V of this type and flash attention.
 *                      TYPE is f16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
 *   llama.cpp:plain    libllama with an f16 cache and without flash attention: the noise floor,
 *                      because it differs from llama.cpp:f16 only in the order of sums
 *
 * All backends use the same weights (eval/model_pair.h). */
#ifndef LK_EVAL_BACKEND_H
#define LK_EVAL_BACKEND_H

#include "eval/model_pair.h"
#include "lowkey_lab.h"

struct lk_backend;

/* Open a backend for up to n_ctx tokens (0: the model's trained context). *out is owned:
 * lk_backend_close. LK_E_FORMAT or LK_E_ARG if kv is not valid. */
lk_status lk_backend_open(struct lk_backend **out, struct lk_model_pair *models, const char *kv,
                          int32_t n_ctx, lk_err *err);
void lk_backend_close(struct lk_backend *backend);

/* Whether kv names a cache type of libllama, not a recipe. */
bool lk_backend_is_llama(const char *kv);

/* LK_E_FORMAT or LK_E_ARG if kv is neither a valid recipe nor a known cache type. */
lk_status lk_backend_check(const char *kv, lk_err *err);

/* The full cache that kv is compared with: "f16" or "llama.cpp:f16". */
const char *lk_backend_full(const char *kv);

/* Forget all tokens. */
void lk_backend_clear(struct lk_backend *backend);

/* Set the context to exactly tok[0..n), n > 0. A common prefix is kept if the cache can be
 * truncated to it; the rest is prefilled. A session attends to a prompt exactly, as `lowkey run`
 * does. Afterwards the logits of the last token are available. */
lk_status lk_backend_prefill(struct lk_backend *backend, const int32_t *tok, size_t n, lk_err *err);

/* Like lk_backend_prefill for n > 0 backends of one kind. What they held before is dropped.
 * Sessions compute the prompt once for all of them (lk_prefill_all). */
lk_status lk_backend_prefill_all(struct lk_backend *const *backend, size_t n, const int32_t *tok,
                                 size_t n_tok, lk_err *err);

/* Save the current state, and return to the saved state, including the last logits. */
lk_status lk_backend_save(struct lk_backend *backend, lk_err *err);
lk_status lk_backend_restore(struct lk_backend *backend, lk_err *err);

/* Append n > 0 tokens, which attend to the cache as it is stored. `all`: keep the logits of every
 * token, not only of the last one; then n is at most LK_EVAL_MAX. */
lk_status lk_backend_eval(struct lk_backend *backend, const int32_t *tok, size_t n, bool all,
                          lk_err *err);

/* Logits [n_vocab] of the i-th token of the last evaluation. i < 0 counts from its end. NULL if
 * there are none. Borrowed until the next call. */
const float *lk_backend_logits(const struct lk_backend *backend, int32_t i);

/* The most probable token by logits [n], the first one if several are equal. */
int32_t lk_argmax_token(const float *logits, size_t n);

/* -log p of `tok` by logits [n], in nats. */
double lk_token_nll(const float *logits, size_t n, int32_t tok);

/* Generate greedily from the current state, max_tok tokens at most, into out [max_tok]. Generation
 * ends at a token that ends generations (not stored in out) and, unless `stop` is NULL, after the
 * token with which the generated text contains `stop`. As long as there are fewer than min_tok
 * tokens, the most probable token that does not end generation is taken. *n: tokens in out. */
lk_status lk_backend_generate(struct lk_backend *backend, size_t min_tok, size_t max_tok,
                              const char *stop, int32_t *out, size_t *n, lk_err *err);

/* Sum of -log p, in nats, of tok[n_given..n) after tok[0..n_given), n_given > 0. The given tokens
 * are prefilled (see lk_backend_prefill). each: [n - n_given] values per token, or NULL. */
lk_status lk_backend_nll(struct lk_backend *backend, const int32_t *tok, size_t n_given, size_t n,
                         double *sum, float *each, lk_err *err);

/* What the cache holds now. For libllama the bits are those of the type's blocks alone, and only
 * n_tok, cache_bytes, f16_bytes, bits_per_value and bytes_per_token are set. */
lk_session_stats lk_backend_stats(const struct lk_backend *backend);

/* A predictor for lk_compare_chunk. It borrows the backend. */
struct lk_predictor lk_backend_predictor(struct lk_backend *backend);

/* ---- kinds of backends ---- */

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

/* Functions of a kind of backend. The functions above say what each of them does. */
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

/* A lowkey session with a recipe; libllama's own context with a cache type (backend_llama.c). */
extern const struct lk_backend_ops lk_backend_lowkey, lk_backend_llama;

/* The session of a backend; NULL if the backend is libllama's. Borrowed. */
lk_session *lk_backend_session(const struct lk_backend *backend);

#endif
