/* What attention needs to know about levels of latents (cache/project.h has the mathematics).
 *
 * V of a layer has at most one basis, so sums over its levels of latents add up. They are
 * transformed back to rows once per query, when the ranges are combined. */
#ifndef LK_ATTENTION_LATENTS_H
#define LK_ATTENTION_LATENTS_H

#include "attention/attention.h"
#include "cache/project.h"

/* Number of KV heads that items must keep together, so that each part of a level lies in one item:
 * 1 without latents. */
int lk_attn_head_unit(const struct lk_attn *attn);

/* Channels of the widest part of any level of K and V. */
int lk_attn_max_part(const struct lk_attn *attn);

/* The level of V with the highest rank for a head's group, which is the number of latents of its
 * queries' sums. Other groups may have their highest rank in other levels. NULL: no latents. */
const struct lk_level *lk_attn_v_latents(const struct lk_kv *v, int head_kv);

/* Room for latents in each partial: the highest rank of any group; 0 without any. */
int lk_attn_v_rank(const struct lk_kv *v);

/* Latents in the partials of the call: that rank, or 0 if they are turned back already. */
int lk_attn_partial_latents(const struct lk_attn *attn);

/* Do two levels have the same domain for a part, so that one query and one sum of outputs serve
 * both? */
bool lk_attn_same_domain(const struct lk_kv *kv, int a, int b, int part);

#endif
