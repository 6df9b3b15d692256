/* Exact prefill of a prompt, layer by layer. */
#ifndef LK_ENGINE_PREFILL_H
#define LK_ENGINE_PREFILL_H

#include "engine/session_state.h"
#include "lowkey_serve.h"

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

/* The same for one session, which is empty and has planned checkpoints. If it is cancelled, the
 * prefill stays in the session (prefill_state.h), unless the recipe is eager, and lk_prefill_resume
 * goes on with it. After any other failure the session is empty. */
lk_status lk_prefill_one(struct lk_session *session, const int32_t *tok, size_t n_tok, lk_err *err);
lk_status lk_prefill_resume(struct lk_session *session, lk_err *err);

/* Leave `s` as lk_prefill_all would leave it after the tokens of `exact`, bit for bit but without
 * logits, without computing the prompt. `exact` is a session of an f16 cache that has prefilled it,
 * and `calibrated` one whose keys are all equalized rows after as many sinks. LK_E_UNSUPPORTED if
 * the recipe needs more of a prompt than its rows: statistics of values or of latents, or other
 * numbers of sinks, policies, sums of evicted rows, the path of `eager`; or if the rows are on a
 * device or divided. LK_E_FULL, LK_E_NOMEM: the session is empty. */
lk_status lk_prefill_recode(struct lk_session *s, const struct lk_session *exact,
                            const struct lk_session *calibrated, lk_err *err);

/* Pool the rows of x [n_tok][n_embd] into out [n_embd], and scale the result to length 1. pooling:
 * LK_POOLING_MEAN or LK_POOLING_LAST. */
void lk_pool_rows(const float *x, size_t n_tok, size_t n_embd, lk_pooling pooling, float *out);

#endif
