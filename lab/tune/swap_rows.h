/* Replaces rows of a full cache by rows with the errors of a quantized one, and puts them back. */
#ifndef LK_TUNE_SWAP_ROWS_H
#define LK_TUNE_SWAP_ROWS_H

#include "engine/session_state.h"

enum { LK_SWAP_ROWS = 64 }; /* rows that are moved at a time */

/* Two caches of the same tokens, and positions [a, b) of one side of a layer. */
struct lk_swap {
    lk_session *full, *coded; /* exact and quantized rows */
    const struct lk_kv *kv;   /* what is written: a side of `full`, or of a copy */
    int layer;
    int64_t first, a, b; /* arrays of exact rows begin at position `first` */
    float *move;         /* scratch: [LK_SWAP_ROWS][widest head] */
};

/* The positions of a side whose rows `pair->coded` has quantized, and kv holds. */
struct lk_swap lk_swap_find(const struct lk_swap *pair, const struct lk_kv *kv, int layer);

/* Read the exact rows of [a, b), or write them back. exact: [b - a][all heads]; a is `first` */
void lk_swap_read_exact(const struct lk_swap *r, float *exact);
void lk_swap_write_exact(const struct lk_swap *r, const float *exact);

/* Write rows whose error, the difference to the exact ones, is multiplied by `factor`.
 * exact: from position `first` on */
void lk_swap_write_coded(const struct lk_swap *r, const float *exact, float factor);

/* Replace the rows of V of n layers of `pair->full` so, or write them back. exact: [n][n_row] */
void lk_swap_v(const struct lk_swap *pair, int layer, int n, float factor, float *exact,
               size_t n_row);
void lk_swap_v_back(const struct lk_swap *pair, int layer, int n, const float *exact, size_t n_row);

#endif
