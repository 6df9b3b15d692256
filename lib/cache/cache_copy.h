/* One cache made like another (lk_cache_copy): both hold the same blocks, of which nobody changes any more. What
 * a cache writes to it puts a copy of in its place (lk_cache_writable_block). That happens in these places:
 *
 *   rows that come behind a block that is not full yet             at most one block of a level
 *   rows that take the places of others, under a policy            a block for each head and row
 *
 * and lk_cache_prepare has found the memory for it. */
#ifndef LK_CACHE_CACHE_COPY_H
#define LK_CACHE_CACHE_COPY_H

#include "cache/cache.h"

/* Want of the pool what a stream needs besides the blocks that its levels will hold more of, because some that
 * it holds are shared, when n_new rows come: its levels' fills become `after` [n_level], and rows up to `first`
 * are let go. False where the pool cannot have blocks of that size. */
bool lk_cache_reserve_shared(struct lk_cache *cache, const struct lk_kv *kv,
                             const struct lk_fill *after, int64_t n_new, int64_t first);

#endif
