/* Decoding that reads only the tiles which promise the most attention, and no others.
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
 * query head. The best `share` of the tiles are read, K and V. What else is read whole: the newest
 * LK_READ_NEWEST rows, and rows that are not in whole tiles of rot with means, like sinks and exact
 * windows; levels with a policy, latents, and layers with a sliding window.
 *
 * The rule is for decoding. Calls of more than LK_READ_TOKENS tokens, as for prompts, read
 * everything: their tokens share what is read, and would need almost all of it. */
#ifndef LK_ATTENTION_READ_H
#define LK_ATTENTION_READ_H

#include "attention/attn_item.h"
#include "attention/partition.h"

enum {
    LK_READ_NEWEST = 64,
    LK_READ_TOKENS = 8,
};

/* Floats of scratch per thread (struct lk_attn) for contexts of up to n_ctx tokens. group: query
 * heads of a KV head */
size_t lk_read_floats(int64_t n_ctx, int group);

/* Whether the call is to read a share of its tiles. */
bool lk_read_applies(const struct lk_attn *attn);

/* Process share `range` of n_range of the rows that the item's queries read, and leave their
 * softmax in the item: queries of one token and one KV head, all heads of its group. ith: thread */
void lk_read_process(struct lk_attn_item *item, int range, int n_range, int ith);

#endif
