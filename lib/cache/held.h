/* Which rows of a layer are held here, if several processes divide them into shares.
 *
 * Shares have stripes of consecutive rows in turns, which start after the sinks:
 *
 *     row    | sinks | stripe 0 | stripe 1 | ... | stripe N - 1 | stripe N | ...
 *     share      0        0          1                 N - 1          0
 *
 * A stripe is a whole number of every codec's blocks. Blocks of all levels start a multiple of
 * their size after the sinks. So a block belongs to one share, and a row stays in its share when it
 * ages. All shares have equally many rows, up to one stripe.
 *
 * Counts of levels and tables of blocks are the same everywhere. A block of another share is 0 in
 * the table. Until channel statistics are computed, all rows are held here, because every process
 * computes the statistics itself (lk_kv.has_all_rows).
 *
 * Layers may be divided too (struct lk_place). Rows of a layer that is not held here
 * (lk_kv.is_elsewhere) are counted only.
 *
 * Rows are counted by their index (cache/level.h). */
#ifndef LK_CACHE_HELD_H
#define LK_CACHE_HELD_H

#include <stdbool.h>
#include <stdint.h>

struct lk_kv;
struct lk_level_count;

enum { LK_STRIPE = 512 }; /* rows; a multiple of LK_MAX_MOVE and of the longest chunk of kernels */

struct lk_share {
    int own, n; /* share `own` of n is held here; n <= 1: the rows are not divided */
};

/* What a process holds of a cache. {0}: all. */
struct lk_place {
    struct lk_share share; /* of the rows of layers without a window or a policy */
    /* [n_layer] number of the process that has share 0 of each layer; NULL: 0, and no layer is
     * elsewhere. Layers with the number `own` are held here. */
    const int32_t *holder;
    int own;
};

/* The index of a level's oldest row. */
int64_t lk_kv_level_first(const struct lk_kv *kv, int level);

/* The share of row `index`. */
int lk_held_share(const struct lk_kv *kv, int64_t index);

/* The end of the rows from `index` on that are in the same share. INT64_MAX if rows are not
 * divided. */
int64_t lk_held_end(const struct lk_kv *kv, int64_t index);

/* The first row from `index` on of the own share. */
int64_t lk_held_next(const struct lk_kv *kv, int64_t index);

/* Number of rows of [a, b) of the own share. */
int64_t lk_held_count(const struct lk_kv *kv, int64_t a, int64_t b);

/* The share of a block of a level, and the number of the process that has it. */
int lk_held_block_share(const struct lk_kv *kv, int level, int64_t block);
int lk_held_holder(const struct lk_kv *kv, int level, int64_t block);

/* Is row `at` of a level, counted from the oldest, held here? The row may be the next one to be
 * appended. */
bool lk_held_has_row(const struct lk_kv *kv, int level, int64_t at);
bool lk_held_has_block(const struct lk_kv *kv, int level, int64_t block);

/* Number of rows and of blocks of a level that are held here. */
int64_t lk_held_rows(const struct lk_kv *kv, int level);
int64_t lk_held_blocks(const struct lk_kv *kv, int level);

/* The maximum number of blocks of the own share among n_block successive blocks of a level. */
int64_t lk_held_max_blocks(const struct lk_kv *kv, int level, int64_t n_block);

/* With these counts, are there channel statistics that are still to be computed here? */
bool lk_held_collects(const struct lk_kv *kv, const struct lk_level_count *count);

/* Does therefore every process that holds the layer, here or elsewhere, hold all of its rows? */
bool lk_held_by_all(const struct lk_kv *kv);

#endif
