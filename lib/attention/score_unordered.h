/* Scores of keys that are stored as latents from before RoPE, at any positions: a policy moves rows
 * (cache/evict.h), so the rows of a tile are not consecutive.
 *
 * This is the slow, general form of score_pre.h. Instead of one table of rotations that all tiles
 * share, each tile has its own, with a sine and a cosine for every row and pair of channels. The
 * heads of a part share it, because they hold the same rows:
 *
 *   1. KT [d_head][LK_TILE] = up z, in the order of pairs
 *   2. scores = q (KT + mean), whose row t is rotated by pos[t] * speed */
#ifndef LK_ATTENTION_SCORE_UNORDERED_H
#define LK_ATTENTION_SCORE_UNORDERED_H

#include "attention/score_pre.h"

/* s[i * stride + t] = <q_i, rotated key of row t> for t < rows->n, within a tile. pos: position of
 * each row. The level has a rotation. */
void lk_attn_score_unordered(const struct lk_attn *attn, const struct lk_level *level,
                             const struct lk_rows *rows, const int32_t *pos,
                             const struct lk_part_queries *queries, float *s, size_t stride);

#endif
