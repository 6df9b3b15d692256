/* How the work of one attention call is divided into items.
 *
 * An item covers several KV heads if all their queries fit into one tile of queries, as in
 * decoding. The rows of all heads lie next to each other in a block, so memory is then read
 * sequentially. Ranges of positions give every thread the same number of items. */
#ifndef LK_ATTENTION_PARTITION_H
#define LK_ATTENTION_PARTITION_H

#include "attention/attention.h"

struct lk_partition {
    int n_query; /* queries of one KV head: n_tok * group, ordered [token][query head] */
    int n_head_tile, n_query_tile, n_range; /* items: n_head_tile x n_query_tile x n_range */
    int head_tile, query_tile;              /* KV heads of an item, queries of each, at most */
    int64_t first, end;                     /* positions that are attended to */
    int64_t grid; /* tiles of K's largest level start at grid, grid + LK_TILE, ... */
};

struct lk_partition lk_partition_work(const struct lk_attn *attn);

/* Positions of a chunk. Few queries use the longer chunk that the kernels prefer, unless what they
 * prefetch during a chunk would overflow the L2 cache. */
int lk_partition_chunk(const struct lk_attn *attn, const struct lk_partition *p);

/* Start of range `range`, which is the end of the range before it. Ranges have the same cost, apart
 * from alignment: with few queries the bytes of their rows dominate it, with many their number. */
int64_t lk_partition_range(const struct lk_attn *attn, const struct lk_partition *p, int range);

/* Round pos down to the grid, but not below `min`. */
int64_t lk_partition_align(const struct lk_partition *p, int64_t pos, int64_t min);

/* The maximum of n_range * n_tok over all calls with up to n_tok tokens. group: query heads of a KV
 * head. */
size_t lk_partition_max_partials(int group, int n_head_kv, int n_tok, int n_thread);

#endif
