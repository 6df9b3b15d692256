/* Checking the serialization of a cache (cache/cache_save.h) before anything is loaded. */
#ifndef LK_CACHE_CACHE_CHECK_H
#define LK_CACHE_CACHE_CHECK_H

#include "cache/cache.h"
#include "cache/cache_save.h"

/* A level's rules and counts as they are saved. */
struct lk_saved_level lk_saved_level_of(const struct lk_kv *kv, int level);

/* Do two caches of one shape have the same levels, so that one can hold what the other holds? */
bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b);

/* Check whether this cache can hold n_tok tokens as these counts and rows say, in its first n_layer
 * layers and none in the others: the counts, that
 * statistics and scores are finite, and that the positions of an eviction are possible. Blocks are
 * not inspected: any bytes are valid codes. Reads only counts[0 .. n_count) and rows[0 .. n_row).
 * later: NULL, or the counts of the later state, which have passed, if the rows are a part of it.
 * LK_E_FORMAT if they are inconsistent or belong to another recipe; the message starts after a
 * colon. LK_E_NOMEM. */
lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         const void *rows, size_t n_row, const void *later, int64_t n_tok,
                         int n_layer, lk_err *err);

#endif
