/* Eviction: moves rows into levels with a limit, replaces and drops what does not fit. */
#ifndef LK_CACHE_EVICT_ROWS_H
#define LK_CACHE_EVICT_ROWS_H

#include "base/err.h"
#include "cache/kv.h"

struct lk_cache;

/* Age K and V of a layer that evicts (lk_cache_age). Does nothing until both have the same tokens.
 * LK_E_NOMEM. */
lk_status lk_evict_age(struct lk_cache *cache, int layer, lk_err *err);

/* Choose which rows of a prompt a head keeps, and the other heads of its unit with the unit's first
 * head. Called after lk_cache_alloc_prompt and before lk_cache_encode_prompt, for each head, by any
 * thread. attn_scores: [n_tok][n_head] as
 * lk_policy_needed_scores says, or NULL if the policy needs none. exact: K and V as in
 * lk_cache_encode_prompt. order: [n_tok] scratch of this head. */
void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_scored_row *order);

#endif
