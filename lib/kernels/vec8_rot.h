/* Encode and decode rotated codes, eight rows at a time. Lanes are rows. Sums over channels are
 * then sums of vectors, and a Hadamard transform needs no shuffles. Same bits as codec/rot.c. */
#ifndef LK_KERNELS_VEC8_ROT_H
#define LK_KERNELS_VEC8_ROT_H

#include "codec/hadamard.h"
#include "codec/half.h"
#include "codec/ops.h"
#include "codec/rot.h"
#include "kernels/vec8_trellis.h"

#include <math.h>

/* Maps rows of one head to the codec's domain and back. If d_head is not a power of two, lk_rotate
 * rotates rows one by one and all signs here are 1. */
struct lk_vec8_domain {
    int d;
    bool sylvester;
    float sigma[LK_MAX_D_HEAD], inverse[LK_MAX_D_HEAD], sign[LK_MAX_D_HEAD];
};

LK_ALWAYS_INLINE void lk_vec8_domain_init(const struct lk_part *part, struct lk_vec8_domain *out) {
    int d = part->d_head;
    out->d = d;
    out->sylvester = (d & (d - 1)) == 0;
    for (int c = 0; c < d; c++) {
        out->sigma[c] = part->sigma ? part->sigma[c] : 1;
        out->inverse[c] = 1 / out->sigma[c];
        out->sign[c] = 1;
    }
    if (out->sylvester) lk_rotation_signs(out->sign, d);
}

LK_ALWAYS_INLINE void lk_vec8_hadamard(int n, lk_f32x8 *y) {
    int half = 1;
    for (; 4 * half <= n; half *= 4)
        for (int i = 0; i < n; i += 4 * half)
            for (int j = i; j < i + half; j++) {
                lk_f32x8 a = y[j] + y[j + half], b = y[j] - y[j + half];
                lk_f32x8 c = y[j + 2 * half] + y[j + 3 * half],
                         d = y[j + 2 * half] - y[j + 3 * half];
                y[j] = a + c;
                y[j + half] = b + d;
                y[j + 2 * half] = a - c;
                y[j + 3 * half] = b - d;
            }
    for (int j = 0; half < n && j < half; j++) {
        lk_f32x8 a = y[j], b = y[j + half];
        y[j] = a + b;
        y[j + half] = a - b;
    }
    float scale = 1 / sqrtf((float)n);
    for (int i = 0; i < n; i++) y[i] *= scale;
}

/* Channels [c, c + 8) of a row, divided by sigma. */
LK_ALWAYS_INLINE lk_f32x8 lk_vec8_equalize(const struct lk_vec8_domain *domain, const float *x,
                                           int c) {
    return lk_clamp_f32x8(lk_load_f32x8(x + c) * lk_load_f32x8(domain->inverse + c));
}

/* Transform n <= 8 rows x, `stride` floats apart, into the codec's domain: y [d]. The mean is not
 * subtracted. Lanes without a row are 0. */
LK_ALWAYS_INLINE void lk_vec8_rotate_rows(const struct lk_vec8_domain *domain, int n,
                                          const float *x, size_t stride, lk_f32x8 *y) {
    int d = domain->d;
    float row[LK_LANES][LK_MAX_D_HEAD];
    for (int j = 0; !domain->sylvester && j < n; j++) {
        for (int c = 0; c < d; c += LK_LANES)
            lk_store_f32x8(row[j] + c, lk_vec8_equalize(domain, x + j * stride, c));
        lk_rotate(row[j], d);
    }
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 sign = lk_load_f32x8(domain->sign + c);
        for (int j = 0; j < LK_LANES; j++) {
            if (j >= n)
                y[c + j] = (lk_f32x8){0};
            else if (domain->sylvester)
                y[c + j] = lk_vec8_equalize(domain, x + j * stride, c) * sign;
            else
                y[c + j] = lk_load_f32x8(row[j] + c);
        }
        lk_transpose_f32x8(y + c);
    }
    if (domain->sylvester) lk_vec8_hadamard(d, y);
}

/* The inverse: n rows of y [d] in the original domain. Overwrites y. */
LK_ALWAYS_INLINE void lk_vec8_unrotate_rows(const struct lk_vec8_domain *domain, int n, lk_f32x8 *y,
                                            float *x, size_t stride) {
    int d = domain->d;
    if (domain->sylvester) lk_vec8_hadamard(d, y);
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 sign = lk_load_f32x8(domain->sign + c);
        lk_transpose_f32x8(y + c);
        for (int j = 0; j < n; j++) lk_store_f32x8(x + j * stride + c, y[c + j] * sign);
    }
    for (int j = 0; j < n; j++) {
        if (!domain->sylvester) lk_unrotate(x + j * stride, d);
        for (int c = 0; c < d; c += LK_LANES)
            lk_store_f32x8(x + j * stride + c,
                           lk_load_f32x8(x + j * stride + c) * lk_load_f32x8(domain->sigma + c));
    }
}

/* ---- one group of eight rows ---- */

/* Index of the level nearest to a magnitude, in units of the step. n_border: coder->n_border, a
 * constant after inlining. */
LK_ALWAYS_INLINE lk_i32x8 lk_vec8_nearest_level(const struct lk_rot_quantizer *coder, int n_border,
                                                lk_f32x8 at) {
    if (n_border == 0)
        return lk_f32x8_to_i32x8(lk_min_f32x8(at, lk_set1_f32x8((float)(coder->half - 1))));
    lk_i32x8 k = {0};
    LK_UNROLL8
    for (int i = 0; i < n_border; i++) k -= at > coder->border[i];
    return k;
}

/* That level itself. */
LK_ALWAYS_INLINE lk_f32x8 lk_vec8_level(const struct lk_rot_quantizer *coder, int n_border,
                                        lk_f32x8 at) {
    if (n_border == 0) return lk_i32x8_to_f32x8(lk_vec8_nearest_level(coder, 0, at)) + 0.5f;
    lk_f32x8 level = lk_set1_f32x8(coder->magnitude[0]);
    LK_UNROLL8
    for (int i = 0; i < n_border; i++)
        level += lk_mask_f32x8(at > coder->border[i],
                               lk_set1_f32x8(coder->magnitude[i + 1] - coder->magnitude[i]));
    return level;
}

/* Quantize eight rows y [d]. Codes go to words of K's order: word c / 4 * 4 has channels c .. c +
 * 3. Returns the rows' scales. */
LK_ALWAYS_INLINE lk_f32x8 lk_vec8_quantize_rows(const struct lk_rot_quantizer *coder, int n_border,
                                                int d, const lk_f32x8 *y, lk_u32x8 *cell) {
    lk_f32x8 energy = {0}, max = {0}, best = {0}, scale = {0};
    for (int c = 0; c < d; c++) {
        energy += y[c] * y[c];
        max = lk_max_f32x8(max, lk_abs_f32x8(y[c]));
    }
    lk_f32x8 rms = lk_sqrt_f32x8(energy / (float)d);
    lk_i32x8 nonzero = rms > 0.0f;
    lk_f32x8 guess = lk_select_f32x8(nonzero, coder->fine ? max / coder->reach : rms * coder->unit,
                                     lk_set1_f32x8(1)),
             step = guess;
    for (int i = 0; i < coder->n_trial; i++) {
        lk_f32x8 trial = guess * coder->trial[i], inverse = 1.0f / trial, dot = {0}, norm = {0};
        for (int c = 0; c < d; c++) {
            lk_f32x8 magnitude = lk_abs_f32x8(y[c]),
                     level = lk_vec8_level(coder, n_border, magnitude * inverse);
            dot += level * magnitude;
            norm += level * level;
        }
        lk_f32x8 gain = dot * (dot / norm);
        lk_i32x8 better = gain > best;
        best = lk_select_f32x8(better, gain, best);
        scale = lk_select_f32x8(better, energy / dot, scale);
        step = lk_select_f32x8(better, trial, step);
    }
    lk_f32x8 inverse = 1.0f / step;
    for (int c = 0; c < d; c += 4) {
        lk_u32x8 word = {0};
        LK_UNROLL8
        for (int j = 0; j < 4; j++) {
            lk_i32x8 k = lk_vec8_nearest_level(coder, n_border, lk_abs_f32x8(y[c + j]) * inverse);
            lk_i32x8 code = (k ^ (y[c + j] < 0.0f)) + coder->half;
            word |= (lk_u32x8)code << (8 * j);
        }
        cell[c] = word;
    }
    return lk_mask_f32x8(nonzero, scale);
}

/* ---- tiles ---- */

/* Mean of a tile's rows in the codec's domain, rounded to codes [d] and back. Returns its scale. */
LK_ALWAYS_INLINE float lk_vec8_tile_mean(const struct lk_vec8_domain *domain, const float *x,
                                         size_t stride, float *mean, int8_t *code) {
    for (int c = 0; c < domain->d; c += LK_LANES) {
        lk_f32x8 sum = {0};
        for (int t = 0; t < LK_TILE; t++) sum += lk_vec8_equalize(domain, x + t * stride, c);
        lk_store_f32x8(mean + c, sum / (float)LK_TILE);
    }
    lk_rotate(mean, domain->d);
    return lk_rot_round_mean(mean, domain->d, code);
}

LK_ALWAYS_INLINE void lk_vec8_encode_rot(const struct lk_part *part, void *head, int row0, int n,
                                         const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_quantizer coder = lk_rot_quantizer(codec);
    int d = part->d_head;
    uint16_t *half = (uint16_t *)lk_rot_scales(codec, head, d);
    struct lk_vec8_domain domain;
    lk_vec8_domain_init(part, &domain);
    float mean[LK_MAX_D_HEAD], mean_scale = 0;
    if (codec->mean)
        mean_scale =
            lk_vec8_tile_mean(&domain, x, stride, mean, (int8_t *)lk_rot_mean(codec, head, d));
    if (codec->trellis) {
        struct lk_vec8_tile tile;
        for (int t = 0; t < LK_TILE; t += LK_LANES) {
            lk_f32x8 *row = tile.row[t / LK_LANES];
            lk_vec8_rotate_rows(&domain, LK_LANES, x + t * stride, stride, row);
            for (int c = 0; codec->mean && c < d; c++) row[c] -= mean[c];
        }
        lk_vec8_quantize_tile(part, &tile, head, half);
        if (codec->mean) lk_rot_store_mean_scale(half, mean_scale);
        return;
    }
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    for (int t = 0; t < n; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD], scale;
        lk_vec8_rotate_rows(&domain, n - t < LK_LANES ? n - t : LK_LANES, x + t * stride, stride,
                            y);
        for (int c = 0; codec->mean && c < d; c++) y[c] -= mean[c];
        lk_u32x8 *words = cell + t / LK_LANES;
        switch (coder.n_border) { /* constant numbers of borders unroll the loops */
        case 1: scale = lk_vec8_quantize_rows(&coder, 1, d, y, words); break;
        case 3: scale = lk_vec8_quantize_rows(&coder, 3, d, y, words); break;
        case 7: scale = lk_vec8_quantize_rows(&coder, 7, d, y, words); break;
        default: scale = lk_vec8_quantize_rows(&coder, 0, d, y, words);
        }
        for (int j = 0; j < LK_LANES && t + j < n; j++)
            half[row0 + t + j] = lk_f32_to_f16(scale[j]);
    }
    if (codec->mean) lk_rot_store_mean_scale(half, mean_scale);
    if (n == LK_TILE) {
        if (part->side == LK_V) lk_vec8_reorder_cells(d, cell, swapped, LK_V);
        lk_vec8_pack_cells(codec->bits, d, part->side == LK_V ? swapped : cell, head);
        return;
    }
    for (int t = 0; t < n; t++) {
        uint8_t code[LK_MAX_D_HEAD];
        for (int c = 0; c < d; c += 4)
            memcpy(code + c, (const char *)(cell + c + t / 8) + t % 8 * 4, 4);
        lk_bitplanes_pack_row(part->side, codec->bits, d, head, row0 + t, code);
    }
}

/* Reconstruct the LK_TILE rows of a tile. */
LK_ALWAYS_INLINE void lk_vec8_decode_rot(const struct lk_part *part, const void *head, float *x,
                                         size_t stride) {
    const struct lk_codec *codec = part->codec;
    if (codec->trellis) {
        lk_codec_decode(part, head, 0, LK_TILE, x, stride);
        return;
    }
    struct lk_rot_quantizer coder = lk_rot_quantizer(codec);
    int d = part->d_head;
    const uint16_t *half = lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mean_scale = codec->mean ? lk_rot_load_mean_scale(half) : 0;
    struct lk_vec8_domain domain;
    lk_vec8_domain_init(part, &domain);
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    lk_vec8_unpack_cells(codec->bits, d, head, cell);
    if (part->side == LK_V) lk_vec8_reorder_cells(d, cell, swapped, LK_K);
    const lk_u32x8 *words = part->side == LK_V ? swapped : cell;
    for (int t = 0; t < LK_TILE; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD], scale;
        for (int j = 0; j < LK_LANES; j++) scale[j] = lk_f16_to_f32(half[t + j] & 0x7fff);
        for (int c = 0; c < d; c++) {
            lk_i32x8 code = (lk_i32x8)((words[c / 4 * 4 + t / LK_LANES] >> (8 * (c % 4))) & 255);
            lk_i32x8 negative = code < coder.half, k = (code - coder.half) ^ negative;
            lk_f32x8 level = lk_i32x8_to_f32x8(k) + 0.5f;
            if (coder.n_border) level = lk_set1_f32x8(coder.magnitude[0]);
            for (int i = 0; i < coder.n_border; i++)
                level += lk_mask_f32x8(k > i,
                                       lk_set1_f32x8(coder.magnitude[i + 1] - coder.magnitude[i]));
            level = (lk_f32x8)((lk_i32x8)level | (negative & INT32_MIN));
            y[c] = scale * level;
            if (codec->mean) y[c] += mean_scale * mean[c];
        }
        lk_vec8_unrotate_rows(&domain, LK_LANES, y, x + t * stride, stride);
    }
}

#endif
