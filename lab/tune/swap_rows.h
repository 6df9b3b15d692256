/* Replaces rows of a full cache by rows with the errors of a quantized cache, and puts them back. */
#ifndef LK_TUNE_SWAP_ROWS_H
#define LK_TUNE_SWAP_ROWS_H

#include "engine/session_state.h"

enum { LK_SWAP_ROWS = 64 }; /* rows that are moved at a time */

/* Positions [a, b) of one side of a layer. */
struct lk_swap {
    const lk_session *full, *coded; /* caches of the same tokens: exact and quantized rows */
    const struct lk_kv *kv;         /* what is written: a side of `full`, or of a copy */
    int layer;
    int64_t first, a, b; /* arrays of exact rows begin at position `first` */
    float *move;         /* scratch: [LK_SWAP_ROWS][widest head] */
};

/* Set positions to those whose rows `coded` has quantized, and kv holds. */
void lk_swap_find(struct lk_swap *r);

/* Read the exact rows of [a, b), or write them back. exact: [b - a][all heads]; a is `first` */
void lk_swap_read_exact(const struct lk_swap *r, float *exact);
void lk_swap_write_exact(const struct lk_swap *r, const float *exact);

/* Write rows whose error, the difference to the exact ones, is multiplied by `factor`.
 * exact: from position `first` on */
void lk_swap_write_coded(const struct lk_swap *r, const float *exact, float factor);

#endif
