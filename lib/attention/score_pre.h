/* Scores of keys that are stored as latents from before RoPE (Palu, section 3.3 and its fused
 * kernel).
 *
 * A position's rotation stands between the query and the latents, so no single vector per query
 * serves all positions. Keys are therefore reconstructed tile by tile, rotated and multiplied with
 * the queries. They never leave the L1 cache:
 *
 *   1. KT [d_head][LK_TILE] = up z. The rows of up are queries to the tile's codes (kernels.h), in
 *      the codec's domain, so no code is unpacked to floats.
 *   2. KT += mean
 *   3. scores = q, rotated back by the tile's first position, times KT, whose pairs of channels are
 *      rotated by t * speed for t < LK_TILE, from a table that all tiles share
 *
 * Per head and position this costs rank x d_head multiply-adds. Latents of rotated keys cost only
 * rank per query. */
#ifndef LK_ATTENTION_SCORE_PRE_H
#define LK_ATTENTION_SCORE_PRE_H

#include "attention/attention.h"
#include "cache/rope.h"

/* Queries of one KV head, each [d_head]. */
struct lk_head_queries {
    int head_kv, n_q;
    const float *q[LK_ATTN_QUERIES];
};

/* s[i * stride + t] = <q_i, rotated key of row t> for t < rows->n, within a tile. phase: at the
 * tile's first position. */
void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_level *level,
                       const struct lk_rows *rows, const struct lk_rope_phase *phase,
                       const struct lk_head_queries *queries, float *s, size_t stride);

#endif
