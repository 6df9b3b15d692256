/* How the work of one call of attention is cut into items.
 *
 * An item takes several KV heads where all their queries fit into one tile of queries, as when tokens come
 * one by one: rows of all heads lie side by side in a block, so memory is then read from end to end. Ranges
 * of positions give every thread the same number of items. */
#ifndef LK_ATTENTION_PARTITION_H
#define LK_ATTENTION_PARTITION_H

#include "attention/attention.h"

struct lk_partition {
    int n_query; /* queries of one KV head: n_tok * group, ordered [token][head of group] */
    int n_span, n_qtile, n_range; /* spans of KV heads, tiles of a head's queries, ranges */
    int span, qtile;              /* KV heads of an item and, at most, queries of each */
    int64_t first, end;           /* positions that are looked at */
    int64_t grid; /* tiles of K's largest level begin at grid, grid + LK_TILE, ... */
};

struct lk_partition lk_partition_work(const struct lk_attn *attn);

/* Positions of a chunk: few queries have the longer ones that a table of kernels may want, unless the second-level cache would be full
 * of what is fetched while a chunk is worked on. */
int lk_partition_chunk(const struct lk_attn *attn, const struct lk_partition *cut);

/* Where range `range` begins, and the one before it ends. Ranges cost alike, but for what the grid takes or gives: few
 * queries by the bytes of their rows, many by their number. */
int64_t lk_partition_range(const struct lk_attn *attn, const struct lk_partition *cut, int range);

/* The last position of the grid that is not after pos, or `least` where that is later. */
int64_t lk_partition_on_grid(const struct lk_partition *cut, int64_t pos, int64_t least);

#endif
