/* Attention weights themselves: for eviction policies and for inspection. Scores are computed
 * again, by the same kernels. */
#ifndef LK_ATTENTION_ATTN_WEIGHTS_H
#define LK_ATTENTION_ATTN_WEIGHTS_H

#include "recipe/policy.h"

#include <stdbool.h>

struct lk_attn;

/* Between items and combine: add the weight that each row got from the call's queries to
 * attn_scores [k->n_tok - k->first][n_head_kv], by index. Weights are normalized over rows only,
 * without extra_partial.
 *
 *   LK_SCORES_ALL      weights are summed over the queries and the query heads of a KV head
 *   LK_SCORES_LAST     the same of the newest token alone, which replaces the old values
 *   LK_SCORES_REPLAY   the largest weight, not the sum, of the rows before the call's own */
void lk_attn_accumulate_scores(const struct lk_attn *attn, int n_range, enum lk_policy_scores kind,
                               float *attn_scores, int ith, int nth);

/* For inspection: the weights with which token `tok` of the call attends. weight:
 * [n_head][k->n_tok] by position, 0 for evicted rows; each head's weights sum to 1. log_sum
 * [n_head], or NULL: the logarithm of the sum of exp(score), which extra_partial is not part of.
 * Runs on one thread, in the first thread's scratch. */
void lk_attn_weights(const struct lk_attn *attn, int tok, float *weight, float *log_sum);

#endif
