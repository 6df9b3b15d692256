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

/* How several processes that hold parts of a cache save it to one file, and load it from there.
 * Process 0 has the file. All call the same functions in the same order. False if one is lost. */
struct lk_save_link {
    int own; /* number of this process (cache/held.h) */
    /* The n bytes `data` of process `holder` go to the writer of process 0. */
    bool (*put)(struct lk_save_link *, const struct lk_writer *, int holder, const void *data,
                size_t n);
    /* index [n] of process 0 becomes what the processes [first, first + n_holder) know of it. An
     * entry that a process does not know is -1. */
    bool (*merge)(struct lk_save_link *, int first, int n_holder, int32_t *index, size_t n);
    /* The n bytes `data` of process `from` to all. */
    bool (*broadcast)(struct lk_save_link *, int from, void *data, size_t n);
};

/* Writing what one process, or several, hold. */
struct lk_saving {
    const struct lk_writer *writer; /* of process 0 */
    struct lk_save_link *link;      /* NULL: this process holds all */
    bool ok;                        /* nothing has failed so far here */
    uint64_t *n_byte; /* not NULL: write and send nothing, but add the number of bytes held here */
};

/* The n bytes `data` that process `holder` has go to the writer. Returns saving->ok. */
bool lk_saving_put(struct lk_saving *saving, int holder, const void *data, size_t n);

/* Write the counts, write the rows. False if the writer fails. If several processes hold the rows,
 * all of them call lk_cache_write_rows and lk_cache_write_part. */
bool lk_cache_write_counts(const struct lk_cache *cache, const struct lk_writer *writer);
bool lk_cache_write_rows(const struct lk_cache *cache, struct lk_saving *saving);

/* Write the rows of an earlier state of the cache `later` as a part of it. */
bool lk_cache_write_part(const struct lk_cache *cache, const struct lk_cache *later,
                         struct lk_saving *saving);

/* Bytes of a file on their way to all processes: process 0 has them and broadcasts them piece by
 * piece. All read the same number of bytes, in the same order. */
enum { LK_RESTORE_ROOM = 1 << 20 };
struct lk_restoring {
    const char *data; /* [n_left] of process 0: what was not broadcast yet */
    uint64_t n_left;
    const char *piece; /* [n_piece] is read next */
    uint64_t n_piece;
    struct lk_save_link *link; /* NULL: this process alone */
    void *room;                /* LK_RESTORE_ROOM bytes in processes other than 0 */
    void *spare;               /* for lk_cache_restore_part with a link: room for a block */
    bool lost;                 /* a process is lost, or the bytes are at their end */
};

/* Start to read data [n], which process 0 has. room: as in struct lk_restoring. */
struct lk_restoring lk_restoring_start(const void *data, uint64_t n, struct lk_save_link *link,
                                       void *room);

/* The next n bytes, to `to`; leave them out if it is NULL. */
void lk_restoring_get(struct lk_restoring *from, void *to, uint64_t n);

/* Load counts and rows that have passed lk_cache_check: first the counts, which allocates what the
 * rows need; after LK_E_NOMEM the cache is empty. If several processes hold the rows, all of them
 * restore the same counts and read the same rows, and each keeps its own. False if one is lost. */
lk_status lk_cache_restore_counts(struct lk_cache *cache, const void *counts, lk_err *err);
bool lk_cache_restore_rows(struct lk_cache *cache, struct lk_restoring *from);

/* Make a copy (lk_cache_copy) of the later state what these counts and this part say, which have
 * passed lk_cache_check. Other blocks stay shared. False without memory: the cache is empty, and
 * the part has been read. */
bool lk_cache_restore_part(struct lk_cache *cache, const void *counts, struct lk_restoring *from);

#endif
