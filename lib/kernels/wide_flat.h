/* int8 and kivi, coded row by row: lanes are channels. Bit for bit what codec/int8.c and codec/kivi.c do. */
#ifndef LK_KERNELS_WIDE_FLAT_H
#define LK_KERNELS_WIDE_FLAT_H

#include "codec/half.h"
#include "codec/int8.h"
#include "codec/kivi.h"
#include "codec/ops.h"
#include "kernels/wide_cells.h"

/* Codes of V's order into a tile of either side. */
LK_ALWAYS_INLINE void lk_wide_store_flat(enum lk_side side, int bits, int d_head,
                                         const lk_u32x8 *cell, void *tile) {
    lk_u32x8 turned[LK_MAX_D_HEAD];
    if (side == LK_K) lk_wide_turn(d_head, cell, turned, LK_K);
    lk_wide_pack(bits, d_head, side == LK_K ? turned : cell, tile);
}

/* (x - min) * inverse, rounded, within [least, most]. */
LK_ALWAYS_INLINE lk_i32x8 lk_wide_round(lk_f32x8 x, lk_f32x8 min, lk_f32x8 inverse, float least,
                                        float most) {
    lk_f32x8 level = (lk_tame8(x) - min) * inverse;
    return lk_nearest8(lk_min8(lk_max8(level, lk_all8(least)), lk_all8(most)));
}

/* A whole tile. */
LK_ALWAYS_INLINE void lk_wide_encode_int8(const struct lk_part *part, void *head, const float *x,
                                          size_t stride) {
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_int8_scales(head, d);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride) {
        lk_f32x8 most = {0};
        for (int c = 0; c < d; c += LK_LANES)
            most = lk_max8(most, lk_abs8(lk_tame8(lk_load8(x + c))));
        scale[t] = lk_half(lk_most8(most) / 127 + LK_INT8_EPS);
        float stored = lk_unhalf(scale[t]);
        lk_f32x8 inverse = lk_all8(stored > 0 ? 1 / stored : 0);
        for (int c = 0; c < d; c += LK_LANES) {
            lk_i32x8 code =
                lk_wide_round(lk_load8(x + c), lk_all8(0), inverse, -127, 127) + LK_INT8_MID;
            cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
        }
    }
    lk_wide_store_flat(part->side, 8, d, cell, head);
}

/* Scale and minimum of groups, as they are kept; returns 1 / scale. */
LK_ALWAYS_INLINE float lk_wide_range(float lo, float hi, int bits, uint16_t *scale, uint16_t *min) {
    *scale = lk_half((hi - lo + 0.0f) / (float)((1 << bits) - 1)); /* + 0: never -0 */
    *min = lk_half(lo + 0.0f);
    float stored = lk_unhalf(*scale);
    return stored > 0 ? 1 / stored : 0;
}

/* A whole block. */
LK_ALWAYS_INLINE void lk_wide_encode_kivi_k(const struct lk_part *part, void *head, const float *x,
                                            size_t stride) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    float inverse[LK_MAX_D_HEAD], least[LK_MAX_D_HEAD], top = (float)((1 << bits) - 1);
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 lo = lk_tame8(lk_load8(x + c)), hi = lo;
        for (int t = 1; t < part->block_rows; t++) {
            lk_f32x8 v = lk_tame8(lk_load8(x + t * stride + c));
            lo = lk_min8(lo, v);
            hi = lk_max8(hi, v);
        }
        for (int j = 0; j < LK_LANES; j++) {
            inverse[c + j] = lk_wide_range(lo[j], hi[j], bits, &scale[c + j], &min[c + j]);
            least[c + j] = lk_unhalf(min[c + j]);
        }
    }
    for (int row0 = 0; row0 < part->block_rows; row0 += LK_TILE) {
        lk_u32x8 cell[LK_MAX_D_HEAD];
        memset(cell, 0, d * sizeof *cell);
        for (int t = 0; t < LK_TILE; t++, x += stride)
            for (int c = 0; c < d; c += LK_LANES) {
                lk_i32x8 code = lk_wide_round(lk_load8(x + c), lk_load8(least + c),
                                              lk_load8(inverse + c), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        lk_wide_store_flat(LK_K, bits, d, cell, (void *)lk_kivi_tile(part->codec, head, d, row0));
    }
}

/* A whole tile. */
LK_ALWAYS_INLINE void lk_wide_encode_kivi_v(const struct lk_part *part, void *head, const float *x,
                                            size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_V, head, d);
    uint16_t *min = scale + lk_kivi_groups(part->codec, LK_V, d);
    float top = (float)((1 << bits) - 1);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride)
        for (int g = 0; g < d; g += group) {
            lk_f32x8 lo = lk_tame8(lk_load8(x + g)), hi = lo;
            for (int c = g + LK_LANES; c < g + group; c += LK_LANES) {
                lk_f32x8 v = lk_tame8(lk_load8(x + c));
                lo = lk_min8(lo, v);
                hi = lk_max8(hi, v);
            }
            int at = g / group * LK_TILE + t;
            float inverse = lk_wide_range(-lk_most8(-lo), lk_most8(hi), bits, &scale[at], &min[at]),
                  least = lk_unhalf(min[at]);
            for (int c = g; c < g + group; c += LK_LANES) {
                lk_i32x8 code =
                    lk_wide_round(lk_load8(x + c), lk_all8(least), lk_all8(inverse), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        }
    lk_wide_store_flat(LK_V, bits, d, cell, head);
}

#endif
