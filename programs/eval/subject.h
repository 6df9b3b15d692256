/* Subjects: what is evaluated. A subject reads tokens through one kind of cache and predicts.
 *
 *   KV                 what it is
 *   a recipe           a lowkey session that keeps its cache by it
 *   llama.cpp:TYPE     libllama's own context with K and V of that type, flash attention on; TYPE is f16, q8_0,
 *                      q5_1, q5_0, q4_1, q4_0 or iq4_nl
 *   llama.cpp:plain    the same in f16 without flash attention: the noise floor of reordered sums
 *
 * Both kinds use the same weights: with LK_WEIGHTS_F32, libllama opens a temporary copy of the model
 * whose matrices are f32. */
#ifndef LK_EVAL_SUBJECT_H
#define LK_EVAL_SUBJECT_H

#include "base/err.h"
#include "measure/compare.h"

struct llama_model;

/* The model behind all subjects. libllama's is opened when the first subject asks for it. */
struct lk_models {
    const char *path; /* borrowed */
    lk_model_opts opts;
    lk_model *lowkey;
    struct llama_model *llama;
    /* lowkey's model is only there for its vocabulary: take no memory for weights */
    bool tokens_only;
};

/* Open models->lowkey by path and opts, which the caller has set. Free with lk_models_close. */
lk_status lk_models_open(struct lk_models *models, lk_err *err);
void lk_models_close(struct lk_models *models);

/* Work done, in tokens read or generated; false cancels (LK_E_CANCELLED). */
typedef bool (*lk_tick)(void *user, double n_tok);

struct lk_subject {
    const struct lk_subject_kind *kind;
    void *self;
    const char *kv; /* borrowed from the caller of lk_subject_open */
    int32_t n_ctx;
    size_t n_vocab;
    lk_model *model; /* lowkey's, for tokens and texts */
    lk_tick tick;    /* may be NULL */
    void *user;
    double ticked; /* of the prompt being read */
};

/* A subject for at most n_ctx tokens (0: as many as the model was trained for). *out is owned:
 * lk_subject_close. LK_E_FORMAT and LK_E_ARG for a bad kv. */
lk_status lk_subject_open(struct lk_subject **out, struct lk_models *models, const char *kv,
                          int32_t n_ctx, lk_err *err);
void lk_subject_close(struct lk_subject *subject);

/* Is kv of libllama's kind, and if so, is it known? The full cache that it is measured against. */
bool lk_subject_is_llama(const char *kv);
lk_status lk_subject_check(const char *kv, lk_err *err);
const char *lk_subject_full(const char *kv);

/* Forget all tokens. */
void lk_subject_clear(struct lk_subject *subject);

/* Stand exactly after tok[0..n), n > 0: keeps a common prefix where the cache can be cut back to it, reads
 * the rest as a prompt. A session reads whole prompts exactly, as `lowkey run` does. Afterwards the last
 * token's logits are there. */
lk_status lk_subject_prompt(struct lk_subject *subject, const int32_t *tok, size_t n, lk_err *err);

/* The same for n > 0 subjects of one kind, which forget what they held before. Sessions read the prompt once for
 * all of them (lk_prefill_all). */
lk_status lk_subjects_prompt(struct lk_subject *const *subject, size_t n, const int32_t *tok,
                             size_t n_tok, lk_err *err);

/* Take note of where the subject stands, and come back to it, its last logits included. */
lk_status lk_subject_save(struct lk_subject *subject, lk_err *err);
lk_status lk_subject_restore(struct lk_subject *subject, lk_err *err);

/* Append n tokens, 1 to LK_EVAL_MAX where `all`, through the cache itself. `all`: logits of each of them. */
lk_status lk_subject_read(struct lk_subject *subject, const int32_t *tok, size_t n, bool all,
                          lk_err *err);

/* Logits [n_vocab] after the i-th token of the last read; i < 0 counts from its end. NULL where there are
 * none. Borrowed until the next call. */
const float *lk_subject_logits(const struct lk_subject *subject, int32_t i);

/* The most probable token by logits [n], of equal ones the first; -log p of `tok` by them, in nats. */
int32_t lk_most_probable(const float *logits, size_t n);
double lk_nll(const float *logits, size_t n, int32_t tok);

/* Greedy generation from where the subject stands: at most n_most tokens into out, ended by a token that
 * ends a generation (not kept), and where `stop` is not NULL, after the token with which the text so far
 * contains it. *n: tokens kept. */
lk_status lk_subject_generate(struct lk_subject *subject, size_t n_most, const char *stop,
                              int32_t *out, size_t *n, lk_err *err);

/* Sum of -log p, in nats, of tok[n_given..n) after tok[0..n_given), n_given > 0. The given part is read as
 * a prompt and shared with the call before where it can be. each: [n - n_given] or NULL, per token. */
lk_status lk_subject_nll(struct lk_subject *subject, const int32_t *tok, size_t n_given, size_t n,
                         double *sum, float *each, lk_err *err);

/* What the cache holds now. For libllama, bits are those of the type's blocks alone, and only n_tok,
 * cache_bytes, f16_bytes, bits_per_value and bytes_per_token are set. */
lk_session_stats lk_subject_stats(const struct lk_subject *subject);

/* The session behind a recipe; NULL for libllama's kind. Borrowed. */
lk_session *lk_subject_session(const struct lk_subject *subject);

/* As a predictor for lk_compare_chunk; borrowed. */
struct lk_predictor lk_subject_predictor(struct lk_subject *subject);

/* ---- what a kind of subject is ---- */

struct lk_subject_kind {
    lk_status (*open)(struct lk_subject *subject, struct lk_models *models, lk_err *err);
    void (*close)(struct lk_subject *subject);
    void (*clear)(struct lk_subject *subject);
    lk_status (*prompt)(struct lk_subject *subject, const int32_t *tok, size_t n, lk_err *err);
    lk_status (*prompt_all)(struct lk_subject *const *subject, size_t n_subject, const int32_t *tok,
                            size_t n, lk_err *err); /* or NULL */
    lk_status (*save)(struct lk_subject *subject, lk_err *err);
    lk_status (*restore)(struct lk_subject *subject, lk_err *err);
    lk_status (*read)(struct lk_subject *subject, const int32_t *tok, size_t n, bool all,
                      lk_err *err); /* n <= LK_EVAL_MAX */
    const float *(*logits)(const struct lk_subject *subject, int32_t i);
    lk_session_stats (*stats)(const struct lk_subject *subject);
};

extern const struct lk_subject_kind lk_subject_lowkey, lk_subject_llama;

/* Tell the tick of n tokens; LK_E_CANCELLED where it says so. */
lk_status lk_subject_tick(struct lk_subject *subject, double n, lk_err *err);

/* libllama's model of the same file and weights, opened at the first call; borrowed from models. */
lk_status lk_models_llama(struct lk_models *models, struct llama_model **out, lk_err *err);

#endif
