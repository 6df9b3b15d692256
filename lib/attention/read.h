/* Decoding that reads the tiles that promise the most attention, and no others.
 *
 * A tile of K in codec rot holds the mean of its LK_TILE rows, and rotation spreads what is left of
 * a row evenly over its channels. So the scores of a tile's rows are about Gaussian: for query q,
 *
 *     mean      scale <q, mean>
 *     variance  scale^2 |q|^2 s,    s = mean over the rows of (row scale / unit)^2
 *     log of the sum of exp(score)  ~  log LK_TILE + mean + variance / 2
 *
 * That is the page score of UNIQUE (mean and deviation of the keys of a page; 2026), with the
 * weight of the deviation that a Gaussian gives it. It costs the bytes of the mean and of the
 * scales, 128 of a tile's 1,472 with best-3 and 64 channels.
 *
 * For each token and KV head, a tile's score is its largest estimated share of the attention of a
 * query head. The best `share` of the tiles are read, K and V. Other rows are always read: the
 * newest LK_READ_NEWEST, sinks and exact windows, levels with a policy, latents, and layers with a
 * sliding window.
 *
 * The rule is for decoding. Calls of more than LK_DECODE_TOKENS tokens, as for prompts, read
 * everything: their tokens share what is read, and would need almost all of it. */
#ifndef LK_ATTENTION_READ_H
#define LK_ATTENTION_READ_H

#include "attention/attn_item.h"
#include "attention/partition.h"

enum {
    LK_READ_NEWEST = 64,
};

/* Tiles of one level of K and one level of V that may be left out, in order of position. */
struct lk_read_zone {
    int level, n_tile, first; /* first: index of its first tile among those of all zones */
    int64_t pos, end;         /* positions of its rows */
    int v_level;              /* level of V that holds them */
    int64_t k_tile, v_tile;   /* the first tile in the blocks of K's level, and of V's */
};

/* What one token reads. */
struct lk_read {
    struct lk_read_zone zone[2 * LK_MAX_KV_LEVEL + 2];
    int n_zone, n_tile; /* n_tile: in all zones */
    int n_chosen;       /* tiles that are read, for each KV head */
    int64_t n_row;      /* rows that are read, for each KV head */
    float *score;       /* [queries][n_tile] estimated logs of weights, not scaled */
    float *share;       /* [n_tile] largest share among the queries of a KV head */
    uint8_t *chosen;    /* [KV heads][n_tile] 1: is read */
};

/* Floats of scratch per thread (struct lk_attn) for contexts of up to n_ctx tokens; 0 if the recipe
 * reads everything. */
size_t lk_read_floats(const struct lk_recipe *recipe, int64_t n_ctx, int n_head, int n_head_kv,
                      int d_head);

/* Whether the call is to read a share of its tiles. */
bool lk_read_applies(const struct lk_attn *attn);

/* Find the tiles that the token of the item's queries may leave out, and how many it reads. */
void lk_read_find(const struct lk_attn_item *item, struct lk_read *out);

/* Choose the tiles for the item's KV heads. Its queries are those of one token. ith: thread */
void lk_read_choose(struct lk_attn_item *item, int ith, struct lk_read *read);

/* Attend to rows [from, to) of the n_row rows that one of these KV heads, the i-th, reads. The
 * item's queries are those of this head. */
void lk_read_attend(struct lk_attn_item *item, const struct lk_read *read, int i, int64_t from,
                    int64_t to);

#endif
