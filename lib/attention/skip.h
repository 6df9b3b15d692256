/* Tiles of V that are not read because the attention they would get is known to be small.
 *
 * Scores come before values, so the weight of a tile of V is known before the tile is read. For a
 * token and a KV head, a tile of LK_TILE rows is left out if for each query head i of the KV head
 *
 *     sum of exp(s_it) over the rows t of the tile  <  share / n_tile * L_i,
 *     L_i = sum of exp(s_it) over the base rows
 *
 * n_tile: tiles that the token sees. The base rows are the token's newest LK_SKIP_NEWEST and,
 * unless the layer has a sliding window, the first LK_TILE. Tiles with base rows are always read.
 * All that is left out gets less than `share` of each head's attention, because L_i is at most the
 * sum over all rows. It leaves the softmax's sum too.
 *
 * The rule depends on one token's scores and nothing else, so the result is the same for any number
 * of threads, and for tokens that are evaluated together or one by one. A tile is not read if all
 * tokens of an item leave it out. */
#ifndef LK_ATTENTION_SKIP_H
#define LK_ATTENTION_SKIP_H

#include "attention/attn_item.h"
#include "attention/runs.h"

enum {
    LK_SKIP_NEWEST = 64,
    LK_SKIP_MIN_TILES = 4, /* shorter contexts are read whole */
};

/* Find the sums over the base rows and the limits of the item's queries, if attn->skip_v > 0. The
 * item has no sums yet. */
void lk_skip_start(struct lk_attn_item *item);

/* Choose the tiles of a run of whole tiles of V of one part that some token needs, and start to
 * fetch them. pos: position of the run's first row, in tile `tile` of the chunk. weight
 * [n_q][stride]: of the run's rows, for
 * the item's queries from `first` on. Those of a token that leaves a tile out become 0 if other
 * tokens may need it, or if the mean of the rows is stored apart and needs their sums. */
lk_tile_set lk_skip_choose(struct lk_attn_item *item, const struct lk_rows *rows, int64_t pos,
                           int tile, float *weight, int first, int n_q, bool has_mean);

/* Add the chosen tiles of the run: acc [n_q][channels of the part]. The weights are moved. */
void lk_skip_accumulate(const struct lk_attn_item *item, const struct lk_rows *rows,
                        lk_tile_set need, float *weight, int n_q, float *acc);

#endif
