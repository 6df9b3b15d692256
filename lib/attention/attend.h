/* An item attends to positions: scores of K, online softmax, weighted sums of V. Results are in the
 * item's scratch: mem.max, mem.sum, and a sum for each level of V. */
#ifndef LK_ATTENTION_ATTEND_H
#define LK_ATTENTION_ATTEND_H

#include "attention/attn_item.h"
#include "attention/partition.h"

/* Attend to the rows held here of [from, to), chunk by chunk. */
void lk_attend_range(struct lk_attn_item *item, const struct lk_partition *p, int64_t from,
                     int64_t to);

/* Attend to the chunk [a, b), whole. */
void lk_attend_chunk(struct lk_attn_item *item, int64_t a, int64_t b);

/* Add the values of the chunk [a, b). mem.score has their weights, in place of the scores. */
void lk_attend_values(struct lk_attn_item *item, int64_t a, int64_t b);

/* Query i has a score of `max`, scaled. If it is the largest so far, all sums are scaled down. */
void lk_attend_raise(struct lk_attn_item *item, int i, float max);

/* Set the sums of a level of V to 0, if nothing was added yet. */
void lk_attend_start_sums(struct lk_attn_item *item, int level);

/* The weighted sum of a level's values for query i, in the level's domain, and its channels. Sums
 * of the queries of a KV head are adjacent. */
float *lk_attend_sum(const struct lk_attn_item *item, int level, int i);
int lk_attend_channels(const struct lk_attn_item *item, int level, int i);

#endif
