/* Predictors on the same tokens, position by position, against the first of them.
 *
 * A chunk of n_ctx tokens is read from an empty cache in small steps, so that a prediction sees what a
 * decoder would have kept by then. Predictions from positions n_ctx / 2 to n_ctx - 2 are scored, as
 * llama-perplexity does. */
#ifndef LK_MEASURE_COMPARE_H
#define LK_MEASURE_COMPARE_H

#include "base/err.h"
#include "lowkey_lab.h"

/* Whatever predicts: a session, or another program's context. */
struct lk_predictor {
    void *self;
    void (*clear)(void *self);
    /* Append n tokens. `all`: keep the logits of each: row i, [n_vocab], borrowed until the next read. */
    lk_status (*read)(void *self, const int32_t *tok, size_t n, bool all, lk_err *err);
    const float *(*logits)(void *self, int32_t row);
    double seconds; /* spent in read; summed by lk_compare_chunk */
};

/* One scored prediction. kl and same are against the first predictor, for which they are 0 and 1. */
struct lk_prediction {
    float nll; /* -log p of the text's next token, nats */
    float kl;  /* KL(first || this), nats */
    bool same; /* the most probable token is the first's */
};

/* Scored predictions of a chunk; 0 for chunks of less than 4 tokens. */
size_t lk_compare_scored(size_t n_ctx);

/* What logits [n_vocab] say of the token `next` that followed, and how far they are from the first predictor's
 * log-probabilities `first` [n_vocab]. mine: [n_vocab], gets the log-probabilities; the same memory as `first`
 * for the first predictor itself. */
struct lk_prediction lk_compare_score(const float *logits, size_t n_vocab, int32_t next,
                                      const float *first, float *mine);

/* Read one chunk tok[0..n_ctx) through n predictors in steps of n_step tokens. score[i]:
 * [lk_compare_scored(n_ctx)] of predictor i, in order of position. `work`: [(n_step + 1)][n_vocab]. `progress` (may
 * be NULL) counts tokens x predictors of this chunk. */
lk_status lk_compare_chunk(struct lk_predictor *predictor, size_t n, size_t n_vocab,
                           const int32_t *tok, size_t n_ctx, size_t n_step, float *work,
                           struct lk_prediction *const *score, lk_progress progress, void *user,
                           lk_err *err);

/* Perplexity, KL and agreement of n scores, which are sorted by KL on the way; the other fields are 0. */
lk_compare_result lk_compare_summarise(struct lk_prediction *score, size_t n);

/* A chunk as llama-perplexity reads it: its first token is the model's begin token, where the model
 * wants one. tok: [n_ctx], written. */
void lk_compare_begin(const lk_model *model, int32_t *tok);

/* A session as a predictor; `session` is borrowed. */
struct lk_predictor lk_session_predictor(lk_session *session);

#endif
