/* What attention over latents needs beside attention over rows (cache/project.h has the mathematics).
 *
 * A stream of V has one basis at most, so sums over its levels of latents add up before they are brought
 * back, which is done once per query when the ranges are combined. */
#ifndef LK_ATTENTION_LATENTS_H
#define LK_ATTENTION_LATENTS_H

#include "attention/attention.h"
#include "cache/project.h"

/* KV heads that an item takes together, so that a part of any level lies in one item: 1 without latents. */
int lk_attn_span(const struct lk_attn *attn);

/* The widest part of the streams' levels. */
int lk_attn_widest(const struct lk_attn *attn);

/* The level of V with the highest rank: its d_part latents of a query's sum are in each partial. NULL: none. */
const struct lk_level *lk_attn_latents(const struct lk_kv *v);

/* Do two levels of a stream have the same domain, so that one query and one sum of outputs serve both? */
bool lk_attn_same_domain(const struct lk_kv *kv, int a, int b);

/* out [d_head] of a query head += its sum of latents, brought back. */
void lk_attn_reconstruct(const struct lk_level *latents, int head_kv, int d_head, const float *sum,
                         float *out);

#endif
