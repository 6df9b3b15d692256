/* Zero points of asym (codec/asym.h), in eight lanes. The kernels of rot and int8 compute with
 * levels around zero, code - top / 2. What they leave out is the same for all channels of a row:
 *
 *   scale (code - zero) = scale (code - top / 2) + offset,  offset = scale (top / 2 - zero) */
#ifndef LK_KERNELS_VEC8_ASYM_H
#define LK_KERNELS_VEC8_ASYM_H

#include "codec/asym.h"
#include "kernels/tile.h"
#include "kernels/vec8.h"

enum { LK_ASYM_VECTORS = LK_TILE / LK_LANES };

/* Offsets of a tile's rows, 0 after the last one. */
LK_ALWAYS_INLINE void lk_vec8_row_offsets(const struct lk_tile *tile,
                                          lk_f32x8 offset[LK_ASYM_VECTORS]) {
    const lk_i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const uint16_t *scale = lk_asym_scales(tile->codec, tile->head, tile->d_head);
    float half_top = 0.5f * (float)((1 << tile->codec->bits) - 1);
    for (int j = 0; j < LK_ASYM_VECTORS; j++) {
        int t = j * LK_LANES;
        lk_f32x8 zero = lk_load_f16x8(scale + LK_TILE + t);
        offset[j] = lk_mask_f32x8(lane < tile->n - t,
                                  lk_load_f16x8(scale + t) * (lk_set1_f32x8(half_top) - zero));
    }
}

/* s[i][t] += offset_t * (sum of query i), as the query was quantized. fine: to 16 bits */
LK_ALWAYS_INLINE void lk_vec8_add_score_offsets(const struct lk_rows *rows,
                                                const struct lk_queries *q, bool fine, float *s,
                                                size_t stride) {
    for (int k = 0; k < lk_rows_n_tile(rows); k++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, k);
        lk_f32x8 offset[LK_ASYM_VECTORS];
        lk_vec8_row_offsets(&tile, offset);
        for (int i = 0; i < q->n_q; i++) {
            float *out = s + i * stride, sum = fine ? q->scale16[i] * (float)q->sum16[i]
                                                    : q->scale8[i] * (float)q->sum8[i];
            for (int j = 0; j < LK_ASYM_VECTORS; j++, out += LK_LANES)
                lk_store_f32x8(out, lk_load_f32x8(out) + offset[j] * sum);
        }
    }
}

/* acc[i][c] += sum over t of p[i][t] * offset_t, for all channels c. */
LK_ALWAYS_INLINE void lk_vec8_add_sum_offsets(const struct lk_rows *rows, const float *p,
                                              size_t stride, int n_q, float *acc) {
    enum { QUERIES = 8 };
    int d = rows->d_head;
    for (int i0 = 0; i0 < n_q; i0 += QUERIES) {
        int n = n_q - i0 < QUERIES ? n_q - i0 : QUERIES;
        lk_f32x8 sum[QUERIES];
        for (int i = 0; i < QUERIES; i++) sum[i] = (lk_f32x8){0};
        for (int k = 0; k < lk_rows_n_tile(rows); k++) {
            struct lk_tile tile = lk_rows_tile(rows, k);
            lk_f32x8 offset[LK_ASYM_VECTORS];
            lk_vec8_row_offsets(&tile, offset);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < LK_ASYM_VECTORS; j++)
                    sum[i] += offset[j] *
                              lk_load_f32x8(p + (i0 + i) * stride + k * LK_TILE + j * LK_LANES);
        }
        for (int i = 0; i < n; i++) {
            float *out = acc + (size_t)(i0 + i) * d, all = lk_hsum_f32x8(sum[i]);
            for (int c = 0; c < d; c += LK_LANES)
                lk_store_f32x8(out + c, lk_load_f32x8(out + c) + all);
        }
    }
}

#endif
