/* A cache as bytes, and back.
 *
 *   counts: for each layer, for K and V:  | struct lk_saved_kv | struct lk_saved_level x n_level |
 *   rows:   for each layer, for K and V:  | sigma | query | blocks of level 0, of level 1, ... |
 *
 * Blocks are written as they lie in memory; channel statistics where the stream has them. */
#ifndef LK_CACHE_CACHE_SAVE_H
#define LK_CACHE_CACHE_SAVE_H

#include "base/writer.h"
#include "cache/cache.h"

struct lk_saved_kv {
    int64_t first, n_tok;
    int32_t n_level, calibrated;
};

/* What a level is, to be compared with what the recipe at hand makes of it, and how full it is. */
struct lk_saved_level {
    char codec[32];
    int64_t block_bytes, n_block, rows;
    int32_t skip, block_rows, batch;
    uint32_t keep;
    float percent;
    /* a hash of which rows it lets go, and of whether its distances shift; 0: neither */
    uint32_t others;
};

/* False when the sink refuses. */
bool lk_cache_put_counts(const struct lk_cache *cache, const struct lk_writer *sink);
bool lk_cache_put_rows(const struct lk_cache *cache, const struct lk_writer *sink);

/* Do two caches of one shape keep rows in the same levels, so that one can hold what the other does? */
bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b);

/* May these counts be those of this cache after n_tok tokens, with so many bytes of rows? Reads nothing but
 * counts[0 .. n_count). LK_E_FORMAT where they contradict themselves or were made by another recipe. */
lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         uint64_t n_row, int64_t n_tok, lk_err *err);

/* Make the cache hold what was put; counts and rows have passed lk_cache_check. After a failure, LK_E_NOMEM,
 * it is empty. */
lk_status lk_cache_restore(struct lk_cache *cache, const void *counts, const void *rows,
                           lk_err *err);

#endif
