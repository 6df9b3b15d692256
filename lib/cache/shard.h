/* Which rows of a layer this process holds, if the ranks of a cluster divide them.
 *
 * Ranks take turns in stripes of consecutive rows, which start after the sinks:
 *
 *     row    | sinks | stripe 0 | stripe 1 | ... | stripe N - 1 | stripe N | ...
 *     rank       0        0          1                 N - 1          0
 *
 * A stripe is a whole number of every codec's blocks. Blocks of all levels start a multiple of
 * their size after the sinks. So a block has one owner, and a row stays with its owner when it
 * ages. All ranks have equally many rows, up to one stripe.
 *
 * Counts of levels and tables of blocks are the same on all ranks. A block of another rank is NULL
 * in the table. Until channel statistics are computed, every rank holds all rows, because it
 * computes them itself (lk_kv.holds_all_rows).
 *
 * If the layers are divided into stages too (struct lk_cache_shape), the ranks of one stage share
 * the rows of its layers in this way. In layers of other stages (lk_kv.on_other_stage) a rank
 * counts rows and holds none.
 *
 * Rows are counted by their index (cache/level.h). */
#ifndef LK_CACHE_SHARD_H
#define LK_CACHE_SHARD_H

#include <stdbool.h>
#include <stdint.h>

struct lk_kv;
struct lk_level_count;

enum { LK_STRIPE = 512 }; /* rows; a multiple of LK_MAX_MOVE and of the longest chunk of kernels */

struct lk_shard {
    int rank, n_rank; /* n_rank <= 1: the rows are not divided */
};

/* The index of a level's oldest row. */
int64_t lk_shard_level_first(const struct lk_kv *kv, int level);

/* The rank that owns row `index`. */
int lk_shard_owner(const struct lk_kv *kv, int64_t index);

/* The end of the rows from `index` on that have the same owner. INT64_MAX if rows are not
 * divided. */
int64_t lk_shard_end(const struct lk_kv *kv, int64_t index);

/* The first row from `index` on that this rank owns. */
int64_t lk_shard_next(const struct lk_kv *kv, int64_t index);

/* Number of rows of [a, b) that this rank owns. */
int64_t lk_shard_count(const struct lk_kv *kv, int64_t a, int64_t b);

/* The owner of a block of a level. */
int lk_shard_block_owner(const struct lk_kv *kv, int level, int64_t block);

/* Does this rank hold row `at` of a level, counted from the oldest? The row may be the next one to
 * be appended. */
bool lk_shard_holds(const struct lk_kv *kv, int level, int64_t at);
bool lk_shard_holds_block(const struct lk_kv *kv, int level, int64_t block);

/* Number of rows and of blocks of a level that this rank holds. */
int64_t lk_shard_held_rows(const struct lk_kv *kv, int level);
int64_t lk_shard_held_blocks(const struct lk_kv *kv, int level);

/* The maximum number of blocks that this rank owns of any n_block successive blocks of a level. */
int64_t lk_shard_max_blocks(const struct lk_kv *kv, int level, int64_t n_block);

/* With these counts, are there channel statistics that this rank is still to compute? */
bool lk_shard_collects(const struct lk_kv *kv, const struct lk_level_count *count);

/* Do therefore all ranks of the layer's stage, which may be another one, hold all of its rows? */
bool lk_shard_all_hold(const struct lk_kv *kv);

#endif
