/* Rows between levels: the steps that aging consists of, each on K or V of one layer, and eviction,
 * which moves K and V of a layer together into a level with a limit. */
#ifndef LK_CACHE_MOVE_H
#define LK_CACHE_MOVE_H

#include "base/err.h"
#include "cache/kv.h"

struct lk_cache;

/* Compute channel statistics from the rows of level `from` if the next older level needs them and
 * they are not there yet. Rows of other shares are dropped when no statistics are missing. */
void lk_move_calibrate(struct lk_cache *cache, struct lk_kv *kv, int from);

/* How many of the oldest n rows of a level can move together: those of one share
 * (cache/held.h). */
int lk_move_rows(const struct lk_kv *kv, int from, int n);

/* Offset of a part in a row of scratch, in floats. Parts never have more channels than their
 * heads. */
size_t lk_move_offset(const struct lk_kv *kv, const struct lk_level *level, int part);

/* Decode the oldest n <= LK_MAX_MOVE rows of level `from` as level `to` stores them: heads' rows
 * or latents, [n][n_head_kv][d_head] apart. The result lies in kv's scratch until the next call. */
const float *lk_move_read(const struct lk_cache *cache, const struct lk_kv *kv, int from, int64_t n,
                          int to);

/* Encode x, laid out as above, after the level's newest row; false without memory. Rows of blocks
 * that are not held here are counted only, and x is not read. */
bool lk_move_append(struct lk_cache *cache, struct lk_kv *kv, int level, const float *x, int64_t n);

/* Drop a level's oldest n rows, and blocks that become empty. */
void lk_move_drop(struct lk_cache *cache, struct lk_kv *kv, int level, int64_t n);

/* ---- eviction: moves rows into levels with a limit, replaces and drops what does not fit ---- */

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
