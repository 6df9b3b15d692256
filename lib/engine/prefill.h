/* Exact prefill of a prompt, layer by layer. */
#ifndef LK_ENGINE_PREFILL_H
#define LK_ENGINE_PREFILL_H

#include "engine/session_state.h"
#include "lowkey_serve.h"

/* Bytes of exact K and V that a prefill holds per token: those of one layer, and of one more if
 * later layers attend to them. */
uint64_t lk_prefill_exact_bytes(const struct lk_hparams *hp);

/* Prefill one prompt into n > 0 sessions of the same model, whatever their recipes. Each ends as
 * lk_session_sync would leave it if it were empty. Previous contents are dropped. Tokens must be in
 * the vocabulary.
 *
 * The prompt is computed once for all sessions, except for sessions whose eviction policies select
 * rows, or whose recipes are eager: these are computed one by one. The first session's progress
 * callback is called, and lk_session_cancel of the first session ends the call. After a failure all
 * sessions are empty. The checkpoints that are planned for a single session (checkpoint.h) are kept
 * after a success. */
lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok,
                         size_t n_tok, lk_err *err);

/* Pool the rows of x [n_tok][n_embd] into out [n_embd], and scale the result to length 1. pooling:
 * LK_POOLING_MEAN or LK_POOLING_LAST. */
void lk_pool_rows(const float *x, size_t n_tok, size_t n_embd, lk_pooling pooling, float *out);

#endif
