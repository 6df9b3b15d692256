/* Scores of keys that are kept as latents from before RoPE (Palu, section 3.3 and its fused kernel).
 *
 * A position's rotation stands between the query and the latents, so that no single vector per query serves
 * all positions. Keys are therefore brought back tile by tile, rotated and multiplied with the queries,
 * and never leave the first cache:
 *
 *   1. KT [d_head][LK_TILE] = up z: the rows of up are queries to the tile's codes (kern.h), in whatever the
 *      codec is, so no code is unpacked to floats
 *   2. + mean
 *   3. scores: q turned back by the tile's first position, times KT whose pairs of channels are turned by t * speed
 *      for t < LK_TILE, from a table that all tiles share (kern.h: score_turned)
 *
 * Per head and position this costs rank x d_head multiply-adds, where latents of rotated keys cost rank per
 * query. */
#ifndef LK_ATTENTION_SCORE_PRE_H
#define LK_ATTENTION_SCORE_PRE_H

#include "attention/attention.h"
#include "cache/rope.h"

/* s[i * stride + t] = <q_i, rotated key of row t> for t < rows->n, within a tile, and queries q [n_q], each [d_head], of one
 * KV head; view: looks from the first row. */
void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_level *level, int head_kv,
                       const struct lk_rows *rows, const float *const *q, int n_q,
                       const struct lk_rope_view *view, float *s, size_t stride);

#endif
