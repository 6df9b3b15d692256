/* Rows of a level as kernels take them (kern.h): runs that begin with a tile and end where is wanted, and what lies
 * before or behind whole tiles, within one tile.
 *
 * A run's blocks hold the rows of all parts side by side. While they are worked on, part after part, the blocks that
 * lie a chunk (attn.h) behind them are fetched in the order of memory. */
#ifndef LK_ATTENTION_RUNS_H
#define LK_ATTENTION_RUNS_H

#include "cache/cache.h"
#include "kernels/kernels.h"

struct lk_run {
    const struct lk_kv *kv;
    int level, first_part, end_part; /* parts that will be read, in this order */
    int most;                        /* rows of a run; set by the caller, as are the next two */
    int chunk;                       /* rows of a chunk */
    bool whole;                      /* runs end with a tile, unless they lie within one */
    int64_t block;                   /* of the tile that has the first row */
    int n_block, row0; /* blocks that the run is in; the tile's first row in its block */
    int inside, n;     /* the first row's place in the tile, and rows; inside + n <= LK_TILE
                                            where inside > 0 */
};

/* Runs of a level of which parts [first_part, end_part) will be read. */
void lk_run_begin(struct lk_run *run, const struct lk_kv *kv, int level, int first_part,
                  int end_part);

/* Find a run of the level's rows [at, end), counted from its first one, that begins at `at`. */
void lk_run_find(struct lk_run *run, int64_t at, int64_t end);

/* The run's rows of one part, and those before it in its first tile. */
struct lk_rows lk_run_rows(const struct lk_run *run, int part);

#endif
