/* Encode asym and decode kvquant in eight lanes. Same bits as codec/asym.c and codec/kvquant.c. */
#ifndef LK_KERNELS_VEC8_BASELINES_H
#define LK_KERNELS_VEC8_BASELINES_H

#include "codec/asym.h"
#include "codec/half.h"
#include "codec/kvquant.h"
#include "kernels/vec8_cells.h"
#include "kernels/vec8_rot.h"

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

/* Not for HQQ. */
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

/* ---- kvquant ---- */

/* Reconstruct the LK_TILE rows from row0 on. */
LK_ALWAYS_INLINE void lk_vec8_decode_kvquant(const struct lk_part *part, const void *head, int row0,
                                             float *x, size_t stride) {
    struct lk_kvquant_block b = lk_kvquant_arrays(part, head);
    int d = part->d_head, bits = part->codec->bits;
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    float level[LK_KVQUANT_LEVELS], range[LK_MAX_D_HEAD], min[LK_MAX_D_HEAD];
    for (int k = 0; k < LK_KVQUANT_LEVELS; k++) level[k] = (float)b.level[k];
    lk_vec8_unpack_cells(bits, d, lk_kvquant_tile(part->codec, head, d, row0), cell);
    if (part->side == LK_V) lk_vec8_reorder_cells(d, cell, swapped, LK_K);
    const uint8_t *code = (const uint8_t *)(part->side == LK_V ? swapped : cell);
    int first = part->side == LK_V ? row0 : 0, n = part->side == LK_V ? LK_TILE : d;
    for (int v = 0; v < n; v++) {
        range[v] = lk_f16_to_f32(b.range[first + v]) * (1.0f / 255);
        min[v] = lk_f16_to_f32(b.min[first + v]);
    }
    for (int t = 0; t < LK_TILE; t++)
        for (int c = 0; c < d; c += 4) {
            const uint8_t *four = code + (c + t / 8) * 32 + t % 8 * 4;
            for (int j = 0; j < 4; j++) {
                int v = part->side == LK_V ? t : c + j;
                x[t * stride + c + j] = min[v] + range[v] * level[four[j]];
            }
        }
    for (int v = 0; v < n; v++)
        for (int k = (first + v) * b.n_out; k < (first + v + 1) * b.n_out; k++) {
            int t = part->side == LK_V ? v : b.index[k] - row0,
                c = part->side == LK_V ? b.index[k] : v;
            if (t >= 0 && t < LK_TILE && c < d) x[t * stride + c] = lk_f16_to_f32(b.outlier[k]);
        }
}

#endif
