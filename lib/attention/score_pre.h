/* Scores of keys that are stored as latents from before RoPE (Palu, section 3.3 and its fused
 * kernel), for consecutive positions.
 *
 * A position's rotation stands between the query and the latents, so no single vector per query
 * serves all positions. Keys are therefore reconstructed tile by tile, rotated and multiplied with
 * the queries. They never leave the L1 cache:
 *
 *   1. KT [d_head][LK_TILE] = up z. The rows of up are queries to the tile's codes (kernels.h), in
 *      the codec's domain, so no code is unpacked to floats.
 *   2. scores = q, rotated back by the first position of a segment of tiles, times KT + mean, whose
 *      pairs of channels are rotated by t * speed for t < LK_SEGMENT, from a table that all
 *      segments share
 *
 * Per head and position this costs rank x d_head multiply-adds. Latents of rotated keys cost only
 * rank per query.
 *
 * With few queries, slow pairs of channels are not reconstructed. Their rotation within a segment
 * is a sum of a few functions of the position (cache/rope.h). With q~ for q rotated back by the
 * segment's first position, their part of the score is
 *
 *   sum over slow pairs j, with channels a and b, of
 *       cos(t speed_j) (q~_a k_a + q~_b k_b) + sin(t speed_j) (q~_b k_a - q~_a k_b)
 *   = sum over m of basis_m(t) (<A_m, z_t> + <w_m, mean>),   A_m = up w_m,
 *
 *   w_m,a = cosine_mj q~_a + sine_mj q~_b,   w_m,b = cosine_mj q~_b - sine_mj q~_a.
 *
 * The vectors A_m [rank] are computed once per query and segment. Then a position costs rank
 * multiply-adds for each of them, as if keys were stored after RoPE, and rank for each channel of
 * a fast pair.
 *
 * A policy moves rows (cache/evict.h), so the rows of a tile need not be consecutive. The slow,
 * general form has a table of its own for each tile, with a sine and a cosine for every row and
 * pair of channels. The heads of a part share it, because they hold the same rows. */
#ifndef LK_ATTENTION_SCORE_PRE_H
#define LK_ATTENTION_SCORE_PRE_H

#include "attention/attention.h"
#include "cache/rope.h"

/* Queries of the KV heads of one part, each [d_head], one head's after the other's. */
struct lk_part_queries {
    int head_kv, n_head; /* heads [head_kv, head_kv + n_head) */
    int n_each;          /* queries of each head */
    int first;           /* number of the item's queries that belong to earlier parts */
    const float *q[LK_ATTN_QUERIES];
};

enum { LK_PRE_FOLDED = 128 }; /* maximum number of folded vectors of an item */

/* Queries of an item, prepared for a segment of a level and kept between its tiles. */
struct lk_pre_queries {
    int n_q;                      /* queries of the item */
    const struct lk_level *level; /* NULL: no queries are prepared */
    int n_fold; /* folded vectors of a query of this level; 0: nothing is folded */
    int64_t pos[LK_ATTN_QUERIES]; /* first position of the segment, for a part's first query */
    struct lk_rope_phase phase;   /* at a segment's first position */
    float *back;                  /* [LK_ATTN_QUERIES][d_head] q~, in the order of pairs */
    /* A: LK_PRE_FOLDED vectors in 8 bits, n_fold of each query. A part's vectors are contiguous.
     * Each part has room for the widest. */
    struct lk_queries folded;
    float *offset; /* [LK_PRE_FOLDED] <w, mean> */
};

/* Memory for heads of d_head channels and latents of up to `rank` components: bytes, 64-byte
 * aligned. */
size_t lk_pre_queries_bytes(int d_head, int rank);
struct lk_pre_queries lk_pre_queries_new(int d_head, int rank, void *mem);

/* A tile of a level. */
struct lk_pre_tile {
    const struct lk_level *level;
    const struct lk_rows *rows;
    int64_t pos;    /* position of its first row */
    int in_segment; /* number of the tile in its segment */
};

/* s[i * stride + t] = <q_i, rotated key of row t> for t < rows->n, within a tile. *pre: of the
 * item. */
void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_pre_tile *tile,
                       const struct lk_part_queries *queries, struct lk_pre_queries *pre, float *s,
                       size_t stride);

/* s[i * stride + t] = <q_i, rotated key of row t> for t < rows->n, within a tile. pos: position of
 * each row. The level has a rotation. */
void lk_attn_score_unordered(const struct lk_attn *attn, const struct lk_level *level,
                             const struct lk_rows *rows, const int32_t *pos,
                             const struct lk_part_queries *queries, float *s, size_t stride);

#endif
