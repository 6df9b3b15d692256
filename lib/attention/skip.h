/* Decoding without the tiles of V that get little attention.
 *
 * Scores come before values. So all scores of a call are computed first, then the tiles of V are
 * chosen, and the chosen ones are added. For a token and a query head, a tile of LK_TILE
 * positions can be left out if
 *
 *     sum over the tile of exp(score)  <  share / n_tile * sum over all rows of exp(score)
 *
 * n_tile: tiles that the token sees. So all that is left out gets less than `share` of the head's
 * attention. It leaves the softmax's sum too. A tile is read for up to LK_SKIP_HEADS query heads of
 * a KV head together, as many as kernels multiply at once, and left out if all of them can do
 * without. It is always read if it is not a whole tile of a level of V.
 *
 * The sums of tiles are computed relative to each tile's largest score and added in the order of
 * tiles. The choice is the same for any number of threads, and for tokens that are evaluated
 * together or one by one.
 *
 * The rule is for decoding. Calls of more than LK_DECODE_TOKENS tokens, as for prompts, read
 * everything: their tokens share what is read, and would need almost all of it. */
#ifndef LK_ATTENTION_SKIP_H
#define LK_ATTENTION_SKIP_H

#include "attention/attn_item.h"
#include "attention/partition.h"

enum {
    LK_SKIP_HEADS = 4,
    LK_SKIP_MIN_TILES = 4, /* a token that sees fewer reads them all */
};

/* Whether the call leaves out tiles of V. */
bool lk_skip_applies(const struct lk_attn *attn);

/* Groups of query heads that the rule divides a KV head's into. */
int lk_skip_groups(const struct lk_attn *attn);

/* Set the item's queries to those of group `unit` of all tokens, KV heads and groups: unit <
 * n_head_kv * lk_skip_groups(attn) * n_tok. */
void lk_skip_set_item(struct lk_attn_item *item, int unit);

/* Floats of scratch that all threads share (struct lk_attn), and that each thread has, for contexts
 * of up to n_ctx tokens. */
size_t lk_skip_floats(int64_t n_ctx, int n_head);
size_t lk_skip_thread_floats(int64_t n_ctx);

/* Compute the weights of rows [from, to) for the item's queries, tile by tile. */
void lk_skip_score(struct lk_attn_item *item, const struct lk_partition *p, int64_t from,
                   int64_t to);

/* After a barrier: choose the tiles for the item's queries, set by lk_skip_set_item, and add range
 * `range` of p->n_range equal parts of them. ith: thread */
void lk_skip_attend(struct lk_attn_item *item, const struct lk_partition *p, int ith, int range);

#endif
