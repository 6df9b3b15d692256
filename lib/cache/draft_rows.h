/* Rows of drafts: tokens that are evaluated before it is known whether the text has them.
 *
 * The rows of a pass of drafts stay in the newest level until it is known how many of them are
 * right. So a pass ends before the first row of any layer ages, is evicted or leaves a sliding
 * window:
 *
 *     newest level  | exact rows . . . . . . . . . | pass    |        <- rows age when it is full
 *                                                    kept  dropped
 *
 * Dropping rows then leaves what evaluating only the kept tokens leaves, bit by bit. Besides rows,
 * a pass changes the power of the queries (cache/equalizer.h), until it is used. It is recorded
 * after each token of a pass. */
#ifndef LK_CACHE_DRAFT_ROWS_H
#define LK_CACHE_DRAFT_ROWS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct lk_cache;

/* Maximum number of tokens of a pass of drafts: rows age in batches of 32 or more. */
enum { LK_DRAFT_TOKENS = 31 };

/* Why no pass of this cache can have drafts once its levels are full; static. NULL: passes can. */
const char *lk_cache_refuses_drafts(const struct lk_cache *cache);

/* How many of n more tokens fit into a pass of drafts now. 0: not even one. */
int64_t lk_cache_draftable(const struct lk_cache *cache, int64_t n);

/* Find memory for the power of the queries, before a pass of drafts. LK_E_NOMEM. */
lk_status lk_cache_prepare_drafts(struct lk_cache *cache, lk_err *err);

/* Drop the newest n_drop rows of the last pass, whose first n_keep > 0 tokens remain. The pass was
 * within lk_cache_draftable, and nothing happened to the cache since then. Memory that was reserved
 * for the rows is reserved again. */
void lk_cache_drop_drafts(struct lk_cache *cache, int64_t n_keep, int64_t n_drop);

#endif
