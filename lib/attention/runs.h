/* Rows of a level in the kernels' layout (kernels/kernels.h, struct lk_rows).
 *
 * A run is a sequence of rows that one kernel call processes. It starts with a tile, or lies within
 * one tile: before or after whole tiles.
 *
 * The blocks of a run hold the rows of all parts. While they are processed, part after part, the
 * blocks that lie a chunk (attention.h) further are prefetched in the order of memory. */
#ifndef LK_ATTENTION_RUNS_H
#define LK_ATTENTION_RUNS_H

#include "attention/attention.h"

enum { LK_RUN_BLOCKS = LK_MAX_KERNEL_CHUNK / LK_TILE + 1 };

struct lk_run {
    /* Set by the caller. */
    const struct lk_kv *kv;
    int level, first_part, end_part; /* parts [first_part, end_part) are read, in this order */
    int max_rows;                    /* rows of a run, at most LK_MAX_KERNEL_CHUNK */
    int chunk;                       /* rows of a chunk */
    bool whole_tiles;                /* runs end with a tile, unless they lie within one */

    /* Set by lk_run_find. */
    int64_t block; /* block of the tile that the first row is in */
    int n_block;   /* blocks of the run */
    int n_ahead;   /* blocks to prefetch meanwhile */
    int row0;      /* that tile's first row in its block */
    int tile_row;  /* the first row in that tile; if > 0, the run ends in the tile */
    int n;         /* rows */
    void *at[LK_RUN_BLOCKS], *ahead[LK_RUN_BLOCKS]; /* the addresses of these blocks */
};

/* Find the run that starts at row `at` of the level's rows [at, end), counted from the oldest. All
 * of its blocks are held here. */
void lk_run_find(struct lk_run *run, int64_t at, int64_t end);

/* Number of the run's first tile in its level's blocks. */
static inline int64_t lk_run_tile(const struct lk_run *run) {
    return run->block * (run->kv->rule[run->level].block_rows / LK_TILE) + run->row0 / LK_TILE;
}

/* The run's rows of one part, preceded by the rows before them in their first tile. */
struct lk_rows lk_run_rows(const struct lk_run *run, int part);

#endif
