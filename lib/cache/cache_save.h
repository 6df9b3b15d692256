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

#include "base/buf.h"
#include "cache/cache.h"
#include "lowkey_cluster.h"

struct lk_saved_kv {
    int64_t first, n_tok; /* as in struct lk_kv */
    int64_t shift[2];     /* 0; in older files, what a context shift dropped and kept */
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
    uint32_t rule_hash; /* of limit, policy, shift and the codecs of heads; 0: none of them */
};

/* Writing what several ranks hold: rank 0 writes, and receives the parts of the others. */
enum { LK_SAVE_ROOM = 1 << 18 };
struct lk_saving {
    const struct lk_writer *writer; /* of rank 0 */
    const lk_ranks *ranks;          /* NULL: this process alone */
    void *room;                     /* LK_SAVE_ROOM bytes on rank 0 of several ranks */
    bool ok;                        /* nothing has failed so far on this rank */
    uint64_t *n_byte; /* not NULL: write and send nothing, but add the number of bytes that this
                       * rank has */
};

/* All ranks: the n bytes `data` that rank `sender` has go to the writer. Returns saving->ok. */
bool lk_saving_put(struct lk_saving *saving, int sender, const void *data, size_t n);

/* Write the counts, write the rows. False if the writer fails. All ranks call lk_cache_write_rows,
 * if there are several. */
bool lk_cache_write_counts(const struct lk_cache *cache, const struct lk_writer *writer);
bool lk_cache_write_rows(const struct lk_cache *cache, struct lk_saving *saving);

/* Write the rows of an earlier state of the cache `later` as a part of it. All ranks call this. */
bool lk_cache_write_part(const struct lk_cache *cache, const struct lk_cache *later,
                         struct lk_saving *saving);

/* Bytes of a file on their way to all ranks: rank 0 has them and broadcasts them piece by piece.
 * All ranks read the same number of bytes, in the same order. */
enum { LK_RESTORE_ROOM = 1 << 20 };
struct lk_restoring {
    const char *data; /* [n_left] on rank 0: what was not broadcast yet */
    uint64_t n_left;
    const char *piece; /* [n_piece] is read next */
    uint64_t n_piece;
    const lk_ranks *ranks; /* NULL: this process alone */
    void *room;            /* LK_RESTORE_ROOM bytes on ranks other than 0 */
    void *spare;           /* for lk_cache_restore_part on several ranks: room for a block */
    bool lost;             /* a rank is lost, or the bytes are at their end */
};

/* Start to read data [n], which is on rank 0. room: as in struct lk_restoring. */
struct lk_restoring lk_restoring_start(const void *data, uint64_t n, const lk_ranks *ranks,
                                       void *room);

/* The next n bytes, to `to`; leave them out if it is NULL. */
void lk_restoring_get(struct lk_restoring *from, void *to, uint64_t n);

/* Load counts and rows that have passed lk_cache_check: first the counts, which allocates what the
 * rows need; after LK_E_NOMEM the cache is empty. If ranks divide the rows, all of them restore the
 * same counts and read the same rows, and each keeps its own. False if a rank is lost. */
lk_status lk_cache_restore_counts(struct lk_cache *cache, const void *counts, lk_err *err);
bool lk_cache_restore_rows(struct lk_cache *cache, struct lk_restoring *from);

/* Make a copy (lk_cache_copy) of the later state what these counts and this part say, which have
 * passed lk_cache_check. Other blocks stay shared. False without memory: the cache is empty, and
 * the part has been read. */
bool lk_cache_restore_part(struct lk_cache *cache, const void *counts, struct lk_restoring *from);

/* Bytes of the largest block. */
size_t lk_cache_max_block_bytes(const struct lk_cache *cache);

#endif
