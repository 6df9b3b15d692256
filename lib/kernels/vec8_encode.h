/* Encode and decode rows (kernels.h: encode, decode) in eight lanes. Shapes that would not gain,
 * and f16, fall back to codec/codec.h. Instantiated by avx2_encode.c and neon_encode.c, which are
 * compiled without contraction of a * b + c, so that all CPUs write the same bits as the codecs. */
#ifndef LK_KERNELS_VEC8_ENCODE_H
#define LK_KERNELS_VEC8_ENCODE_H

#include "codec/half.h"
#include "codec/int8.h"
#include "codec/kivi.h"
#include "codec/ops.h"
#include "kernels/vec8_baselines.h"
#include "kernels/vec8_cells.h"
#include "kernels/vec8_rot.h"

/* ---- int8 and KIVI: lanes are channels; same bits as codec/int8.c and codec/kivi.c ---- */

/* Pack codes in V's order into a tile of either side. */
LK_ALWAYS_INLINE void lk_vec8_pack_v_order(enum lk_side side, int bits, int d_head,
                                           const lk_u32x8 *cell, void *tile) {
    lk_u32x8 swapped[LK_MAX_D_HEAD];
    if (side == LK_K) lk_vec8_reorder_cells(d_head, cell, swapped, LK_K);
    lk_vec8_pack_cells(bits, d_head, side == LK_K ? swapped : cell, tile);
}

/* (x - min) * inverse, rounded and clamped to [lo, hi]. */
LK_ALWAYS_INLINE lk_i32x8 lk_vec8_quantize(lk_f32x8 x, lk_f32x8 min, lk_f32x8 inverse, float lo,
                                           float hi) {
    lk_f32x8 level = (lk_clamp_f32x8(x) - min) * inverse;
    return lk_round_f32x8(lk_min_f32x8(lk_max_f32x8(level, lk_set1_f32x8(lo)), lk_set1_f32x8(hi)));
}

/* One tile of LK_TILE rows x, `stride` floats apart. */
LK_ALWAYS_INLINE void lk_vec8_encode_int8(const struct lk_part *part, void *head, const float *x,
                                          size_t stride) {
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_int8_scales(head, d);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride) {
        lk_f32x8 max = {0};
        for (int c = 0; c < d; c += LK_LANES)
            max = lk_max_f32x8(max, lk_abs_f32x8(lk_clamp_f32x8(lk_load_f32x8(x + c))));
        scale[t] = lk_f32_to_f16(lk_hmax_f32x8(max) / 127 + LK_INT8_EPS);
        float stored = lk_f16_to_f32(scale[t]);
        lk_f32x8 inverse = lk_set1_f32x8(stored > 0 ? 1 / stored : 0);
        for (int c = 0; c < d; c += LK_LANES) {
            lk_i32x8 code =
                lk_vec8_quantize(lk_load_f32x8(x + c), lk_set1_f32x8(0), inverse, -127, 127) +
                LK_INT8_MID;
            cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
        }
    }
    lk_vec8_pack_v_order(part->side, 8, d, cell, head);
}

/* Store the scale and the minimum of a group of values in [lo, hi] as f16. Returns 1 / scale, or 0
 * if the stored scale is 0. */
LK_ALWAYS_INLINE float lk_vec8_store_range(float lo, float hi, int bits, uint16_t *scale,
                                           uint16_t *min) {
    *scale = lk_f32_to_f16((hi - lo + 0.0f) / (float)((1 << bits) - 1)); /* + 0: never -0 */
    *min = lk_f32_to_f16(lo + 0.0f);
    float stored = lk_f16_to_f32(*scale);
    return stored > 0 ? 1 / stored : 0;
}

/* One block of part->block_rows rows: each channel has a scale and a minimum. */
LK_ALWAYS_INLINE void lk_vec8_encode_kivi_k(const struct lk_part *part, void *head, const float *x,
                                            size_t stride) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    float inverse[LK_MAX_D_HEAD], stored_min[LK_MAX_D_HEAD], top = (float)((1 << bits) - 1);
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 lo = lk_clamp_f32x8(lk_load_f32x8(x + c)), hi = lo;
        for (int t = 1; t < part->block_rows; t++) {
            lk_f32x8 v = lk_clamp_f32x8(lk_load_f32x8(x + t * stride + c));
            lo = lk_min_f32x8(lo, v);
            hi = lk_max_f32x8(hi, v);
        }
        for (int j = 0; j < LK_LANES; j++) {
            inverse[c + j] = lk_vec8_store_range(lo[j], hi[j], bits, &scale[c + j], &min[c + j]);
            stored_min[c + j] = lk_f16_to_f32(min[c + j]);
        }
    }
    for (int row0 = 0; row0 < part->block_rows; row0 += LK_TILE) {
        lk_u32x8 cell[LK_MAX_D_HEAD];
        memset(cell, 0, d * sizeof *cell);
        for (int t = 0; t < LK_TILE; t++, x += stride)
            for (int c = 0; c < d; c += LK_LANES) {
                lk_i32x8 code =
                    lk_vec8_quantize(lk_load_f32x8(x + c), lk_load_f32x8(stored_min + c),
                                     lk_load_f32x8(inverse + c), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        lk_vec8_pack_v_order(LK_K, bits, d, cell, (void *)lk_kivi_tile(part->codec, head, d, row0));
    }
}

/* One tile of LK_TILE rows: each token has a scale and a minimum per group of channels. */
LK_ALWAYS_INLINE void lk_vec8_encode_kivi_v(const struct lk_part *part, void *head, const float *x,
                                            size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_V, head, d);
    uint16_t *min = scale + lk_kivi_groups(part->codec, LK_V, d);
    float top = (float)((1 << bits) - 1);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride)
        for (int g = 0; g < d; g += group) {
            lk_f32x8 lo = lk_clamp_f32x8(lk_load_f32x8(x + g)), hi = lo;
            for (int c = g + LK_LANES; c < g + group; c += LK_LANES) {
                lk_f32x8 v = lk_clamp_f32x8(lk_load_f32x8(x + c));
                lo = lk_min_f32x8(lo, v);
                hi = lk_max_f32x8(hi, v);
            }
            int at = g / group * LK_TILE + t;
            float inverse = lk_vec8_store_range(-lk_hmax_f32x8(-lo), lk_hmax_f32x8(hi), bits,
                                                &scale[at], &min[at]),
                  stored_min = lk_f16_to_f32(min[at]);
            for (int c = g; c < g + group; c += LK_LANES) {
                lk_i32x8 code = lk_vec8_quantize(lk_load_f32x8(x + c), lk_set1_f32x8(stored_min),
                                                 lk_set1_f32x8(inverse), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        }
    lk_vec8_pack_v_order(LK_V, bits, d, cell, head);
}

/* ---- dispatch ---- */

LK_ALWAYS_INLINE void lk_vec8_encode(const struct lk_part *part, void *head, int row0, int n,
                                     const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    bool whole_tile = n == LK_TILE;
    if (codec->coding == LK_ROT)
        lk_vec8_encode_rot(part, head, row0, n, x, stride);
    else if (codec->coding == LK_ASYM && !codec->hqq && !codec->clip)
        lk_vec8_encode_asym(part, head, row0, n, x, stride);
    else if (codec->coding == LK_KIVI && part->side == LK_K)
        lk_vec8_encode_kivi_k(part, head, x, stride);
    else if (codec->coding == LK_KIVI && whole_tile)
        lk_vec8_encode_kivi_v(part, head, x, stride);
    else if (codec->coding == LK_INT8 && whole_tile)
        lk_vec8_encode_int8(part, head, x, stride);
    else
        lk_codec_encode(part, head, row0, n, x, stride);
}

LK_ALWAYS_INLINE void lk_vec8_decode(const struct lk_part *part, const void *head, int row0, int n,
                                     float *x, size_t stride) {
    if (part->codec->coding == LK_ROT && n == LK_TILE)
        lk_vec8_decode_rot(part, head, x, stride);
    else if (part->codec->coding == LK_KVQUANT && n == LK_TILE)
        lk_vec8_decode_kvquant(part, head, row0, x, stride);
    else
        lk_codec_decode(part, head, row0, n, x, stride);
}

#endif
