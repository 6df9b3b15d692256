/* Serialization of a cache.
 *
 *   counts: for each layer, for K and V:  | struct lk_saved_kv | struct lk_saved_level x n_level |
 *   rows:   for each layer:  | K | V | positions | scores |
 *           for K and V:     | sigma | query power | blocks of level 0, level 1, ... |
 *
 * Blocks are written as they lie in memory. sigma and query power are written for rows, then for
 * latents, each only if the recipe uses it. Positions i32 [n_row][n_head_kv] are written for layers
 * that evict, and scores f32 of the same shape if the policy needs them (cache/evict.h).
 *
 * An earlier state of a cache shares blocks with a later one. Its rows are written as a part, in
 * which each block has the form
 *
 *     | i32 index of the same block in the later state's level, or -1 | the block, if -1 |
 *
 * Indices grow within a level. */
#ifndef LK_CACHE_CACHE_SAVE_H
#define LK_CACHE_CACHE_SAVE_H

#include "base/writer.h"
#include "cache/cache.h"
#include "lowkey_cluster.h"

struct lk_saved_kv {
    int64_t first, n_tok, n_shifted, n_kept; /* as in struct lk_kv */
    int32_t n_level;
    int32_t calibrated; /* bit 0: statistics of rows, bit 1: of latents */
};

/* A level's rules, to be compared with those of the current recipe, and its counts. */
struct lk_saved_level {
    char codec[64];
    int64_t block_bytes, n_block, rows;
    int32_t skip, block_rows, batch;
    uint32_t keep;
    float percent;
    uint32_t limit_hash; /* hash of limit, policy and shift; 0: none of them */
};

/* Writing what several ranks hold: rank 0 writes, and receives the parts of the others. */
enum { LK_SAVE_ROOM = 1 << 18 };
struct lk_saving {
    const struct lk_writer *writer; /* of rank 0 */
    const lk_ranks *ranks;          /* NULL: this process alone */
    void *room;                     /* LK_SAVE_ROOM bytes on rank 0 of several ranks */
    bool ok;                        /* nothing has failed so far on this rank */
};

/* All ranks: the n bytes `data` that rank `sender` has go to the writer. Returns saving->ok. */
bool lk_saving_put(struct lk_saving *saving, int sender, const void *data, size_t n);

/* Write the counts, write the rows. False if the writer fails. All ranks call lk_cache_write_rows,
 * if there are several. */
bool lk_cache_write_counts(const struct lk_cache *cache, const struct lk_writer *writer);
bool lk_cache_write_rows(const struct lk_cache *cache, struct lk_saving *saving);

/* Write the rows of an earlier state of the cache `later` as a part of it. This process holds all
 * of them. False if the writer fails. */
bool lk_cache_write_part(const struct lk_cache *cache, const struct lk_cache *later,
                         const struct lk_writer *writer);

/* Do two caches of one shape have the same levels, so that one can hold what the other holds? */
bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b);

/* Check whether this cache can hold n_tok tokens as these counts and rows say: the counts, that
 * statistics and scores are finite, and that the positions of an eviction are possible. Blocks are
 * not inspected: any bytes are valid codes. Reads only counts[0 .. n_count) and rows[0 .. n_row).
 * later: NULL, or the counts of the later state, which have passed, if the rows are a part of it.
 * LK_E_FORMAT if they are inconsistent or belong to another recipe; the message starts after a
 * colon. LK_E_NOMEM. */
lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         const void *rows, size_t n_row, const void *later, int64_t n_tok,
                         lk_err *err);

/* Load counts and rows that have passed lk_cache_check: first the counts, which allocates what the
 * rows need; after LK_E_NOMEM the cache is empty.
 *
 * If ranks divide the rows, all of them restore the same counts. Then rank 0 broadcasts the n_row
 * bytes of rows, and each rank keeps its own. rows: on rank 0; room: LK_RESTORE_ROOM bytes on the
 * others. False if a rank is lost. */
enum { LK_RESTORE_ROOM = 1 << 20 };
lk_status lk_cache_restore_counts(struct lk_cache *cache, const void *counts, lk_err *err);
bool lk_cache_restore_rows(struct lk_cache *cache, const void *rows, uint64_t n_row,
                           const lk_ranks *ranks, void *room);

/* Load the counts, and the rows of a part, which have passed lk_cache_check, in a cache that shares
 * the other blocks with `later`. Both have the same recipe and shape, and ledgers with the same
 * `common`. A reservation of `later` ends. False without memory; the cache is empty then. */
bool lk_cache_restore_part(struct lk_cache *cache, struct lk_cache *later, const void *counts,
                           const void *rows, uint64_t n_row);

#endif
