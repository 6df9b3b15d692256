/* Memory of a cache: finds it ahead of time, so that appending and aging rows cannot fail.
 *
 * Blocks may be shared with copies of the cache (cache.h). Writing to a shared block replaces
 * it by a copy. That happens in two places:
 *
 *   rows appended to a block that is not full yet            at most one block of a level
 *   rows that replace others, under an eviction policy       a block for each head and row
 *
 * lk_cache_prepare finds the memory for these copies too. */
#ifndef LK_CACHE_CACHE_MEMORY_H
#define LK_CACHE_CACHE_MEMORY_H

#include "base/err.h"
#include "codec/codec.h"

#include <stdbool.h>
#include <stdint.h>

struct lk_cache;
struct lk_kv;
struct lk_level;

/* Find memory for n_new more tokens in layers [layer0, layer1). Appending and aging them, at most
 * `portion` at a time, then allocates nothing from the system. LK_E_NOMEM. */
lk_status lk_cache_prepare(struct lk_cache *cache, int layer0, int layer1, int64_t n_new,
                           int64_t portion, lk_err *err);

/* Like lk_cache_prepare for all layers, for n_new tokens that come one at a time. Until they have
 * come, steps of one token need no lk_cache_prepare, and freed blocks are kept for later steps. */
lk_status lk_cache_reserve(struct lk_cache *cache, int64_t n_new, lk_err *err);

/* Return free blocks to the system and end a reservation. */
void lk_cache_trim(struct lk_cache *cache);

/* Room on the device for n rows of all heads of K or V; false without memory. Without a device it
 * does nothing. */
bool lk_cache_reserve_staging(struct lk_cache *cache, enum lk_side side, int64_t n);
void lk_cache_free_staging(struct lk_cache *cache, enum lk_side side);

/* Upload n rows x of all heads, `width` floats each. Returns their address in the memory of the
 * device, for moves; NULL without memory. */
const float *lk_cache_upload_rows(struct lk_cache *cache, enum lk_side side, const float *x,
                                  int64_t n, size_t width);

/* Allocate the blocks that the counts of a layer, which has none yet, require. After LK_E_NOMEM
 * the cache must be cleared. */
lk_status lk_cache_alloc_blocks(struct lk_cache *cache, int layer, lk_err *err);

/* Make room for n_block blocks in a level's table; false without memory. */
bool lk_cache_grow_table(struct lk_cache *cache, struct lk_level *level, int64_t n_block);

/* Append a block to a level, or 0 if it is not held here; false without memory. */
bool lk_cache_add_block(struct lk_cache *cache, struct lk_level *level, bool held);

/* Bytes of the largest block. */
size_t lk_cache_max_block_bytes(const struct lk_cache *cache);

/* Set a block of a level to zeros. */
void lk_cache_clear_block(struct lk_cache *cache, const struct lk_level *level, int64_t block);

/* Free the blocks of other shares, in a cache that holds all of them. */
void lk_cache_divide(struct lk_cache *cache, struct lk_kv *kv);

/* Replace a block of a level by a copy if other caches hold it, so that it can be written to. False
 * without memory. */
bool lk_cache_make_writable(struct lk_cache *cache, struct lk_level *level, int64_t block);

#endif
