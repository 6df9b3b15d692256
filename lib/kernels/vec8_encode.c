/* Encoders and decoders in eight lanes. Shapes that would not gain fall back to codec/codec.h.
 * Compiled without contraction of a * b + c, so that all CPUs write the same bits as the codecs. */
#include "kernels/vec8_encode.h"

#include "codec/asym.h"
#include "codec/f16.h"
#include "codec/half.h"
#include "codec/int8.h"
#include "codec/kivi.h"
#include "codec/ops.h"
#include "kernels/vec8_cells.h"
#include "kernels/vec8_rot.h"

/* ---- f16 ---- */

static void encode_f16(int d, uint16_t *out, int n, const float *x, size_t stride) {
    const lk_f32x8 max = lk_set1_f32x8(LK_F16_MAX), min = lk_set1_f32x8(-LK_F16_MAX);
    for (int t = 0; t < n; t++, x += stride, out += d)
        for (int c = 0; c < d; c += LK_LANES) /* keeps NaN */
            lk_store_f16x8(out + c, lk_max_f32x8(min, lk_min_f32x8(max, lk_load_f32x8(x + c))));
}

static void decode_f16(int d, const uint16_t *in, int n, float *x, size_t stride) {
    for (int t = 0; t < n; t++, x += stride, in += d)
        for (int c = 0; c < d; c += LK_LANES) lk_store_f32x8(x + c, lk_load_f16x8(in + c));
}

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

/* ---- asym: lanes are rows ---- */

/* Channels of n <= 8 rows as vectors y [d]. Lanes without a row are 0. */
LK_ALWAYS_INLINE void lk_vec8_load_rows(int d, int n, const float *x, size_t stride, lk_f32x8 *y) {
    for (int c = 0; c < d; c += LK_LANES) {
        for (int j = 0; j < LK_LANES; j++)
            y[c + j] = j < n ? lk_clamp_f32x8(lk_load_f32x8(x + j * stride + c)) : (lk_f32x8){0};
        lk_transpose_f32x8(y + c);
    }
}

/* Quantize a group of eight rows y [width]. Codes go to words of K's order. scale, zero: of the
 * rows, as stored */
LK_ALWAYS_INLINE void lk_vec8_quantize_asym(int bits, int width, const lk_f32x8 *y, lk_u32x8 *cell,
                                            uint16_t scale[LK_LANES], uint16_t zero[LK_LANES]) {
    const float max_zero = 2 * LK_ASYM_MAX_ZERO, top = (float)((1 << bits) - 1);
    lk_f32x8 lo = y[0], hi = y[0], stored, from;
    for (int c = 1; c < width; c++) {
        lo = lk_min_f32x8(lo, y[c]);
        hi = lk_max_f32x8(hi, y[c]);
    }
    lk_f32x8 least = lk_max_f32x8(lk_abs_f32x8(lo), lk_abs_f32x8(hi)) / LK_ASYM_MAX_ZERO,
             step = lk_max_f32x8((hi - lo) / top, least);
    for (int j = 0; j < LK_LANES; j++) {
        scale[j] = lk_f32_to_f16(step[j]);
        stored[j] = lk_f16_to_f32(scale[j]);
    }
    lk_f32x8 inverse = lk_mask_f32x8(stored > 0.0f, 1.0f / stored);
    from = lk_min_f32x8(lk_max_f32x8(-lo * inverse, lk_set1_f32x8(-max_zero)),
                        lk_set1_f32x8(max_zero));
    lk_i32x8 offset = lk_round_f32x8(from);
    for (int j = 0; j < LK_LANES; j++) zero[j] = lk_f32_to_f16((float)offset[j]);
    from = lk_i32x8_to_f32x8(offset);
    for (int c = 0; c < width; c += 4) {
        lk_u32x8 word = {0};
        LK_UNROLL8
        for (int j = 0; j < 4; j++) {
            lk_f32x8 code = lk_i32x8_to_f32x8(lk_round_f32x8(y[c + j] * inverse)) + from;
            code = lk_min_f32x8(lk_max_f32x8(code, lk_set1_f32x8(0)), lk_set1_f32x8(top));
            word |= (lk_u32x8)lk_f32x8_to_i32x8(code) << (8 * j);
        }
        cell[c] = word;
    }
}

LK_ALWAYS_INLINE void lk_vec8_encode_asym(const struct lk_part *part, void *head, int row0, int n,
                                          const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    int d = part->d_head, width = lk_asym_width(codec, d);
    size_t bytes = lk_asym_group_bytes(codec, width);
    struct lk_vec8_domain domain;
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    if (codec->hadamard) lk_vec8_domain_init(part, &domain);
    for (int t = 0; t < n; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD];
        int rows = n - t < LK_LANES ? n - t : LK_LANES;
        if (codec->hadamard)
            lk_vec8_rotate_rows(&domain, rows, x + t * stride, stride, y);
        else
            lk_vec8_load_rows(d, rows, x + t * stride, stride, y);
        for (int c = 0; c < d; c += width) {
            char *group = (char *)head + c / width * bytes;
            uint16_t scale[LK_LANES], zero[LK_LANES];
            uint16_t *out = (uint16_t *)lk_asym_scales(codec, group, width) + row0 + t;
            lk_vec8_quantize_asym(codec->bits, width, y + c, cell + c + t / LK_LANES, scale, zero);
            memcpy(out, scale, rows * sizeof *out);
            memcpy(out + LK_TILE, zero, rows * sizeof *out);
        }
    }
    for (int c = 0; c < d; c += width) {
        char *group = (char *)head + c / width * bytes;
        const lk_u32x8 *words = cell + c;
        if (n == LK_TILE) {
            if (part->side == LK_V) lk_vec8_reorder_cells(width, words, swapped, LK_V);
            lk_vec8_pack_cells(codec->bits, width, part->side == LK_V ? swapped : words, group);
            continue;
        }
        for (int t = 0; t < n; t++) {
            uint8_t code[LK_MAX_D_HEAD];
            for (int i = 0; i < width; i += 4)
                memcpy(code + i, (const char *)(words + i + t / 8) + t % 8 * 4, 4);
            lk_bitplanes_pack_row(part->side, codec->bits, width, group, row0 + t, code);
        }
    }
}

/* ---- dispatch ---- */

void lk_vec8_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride) {
    const struct lk_codec *codec = part->codec;
    bool whole_tile = n == LK_TILE;
    if (codec->coding == LK_F16) {
        encode_f16(part->d_head, (uint16_t *)head + (size_t)row0 * part->d_head, n, x, stride);
    } else if (codec->coding == LK_ROT)
        lk_vec8_encode_rot(part, head, row0, n, x, stride);
    else if (codec->coding == LK_ASYM)
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

void lk_vec8_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride) {
    if (part->codec->coding == LK_F16)
        decode_f16(part->d_head, lk_f16_row(head, part->d_head, row0), n, x, stride);
    else if (part->codec->coding == LK_ROT && n == LK_TILE)
        lk_vec8_decode_rot(part, head, x, stride);
    else
        lk_codec_decode(part, head, row0, n, x, stride);
}
