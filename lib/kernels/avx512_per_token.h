/* Parameters of rot, asym and int8 rows for AVX-512 and AMX: x = scale_t * level + mean,
 * level = cell - top / 2. Zero points of asym are added afterwards (vec8_kernels.c). */
#ifndef LK_KERNELS_AVX512_PER_TOKEN_H
#define LK_KERNELS_AVX512_PER_TOKEN_H

#include "codec/int8.h"
#include "codec/rot.h"
#include "kernels/avx2_vec.h"
#include "kernels/avx512_dot.h"

/* Properties of a codec, shared by its tiles. */
struct lk_avx512_form {
    int top;   /* of the cells; int8 has its middle at 128, as if top were 256 */
    bool fine; /* requires 16-bit queries */
    struct lk_avx512_levels levels;
};

/* Everything of a tile but its codes. */
struct lk_avx512_params {
    const int8_t *mean; /* [d_head]; NULL: no mean */
    float mean_scale;
    __m512 scale[2]; /* of tokens 0..15 and 16..31, 0 after the tile's last row */
};

/* Levels of the codes of up to 5 bits as bytes: 0 to top for K; around zero and doubled for V. */
static inline void make_level_table(const struct lk_rot_codebook *levels, int bits,
                                    enum lk_side side, uint8_t table[32]) {
    memset(table, 0, 32);
    for (int i = 0; i < 1 << bits; i++) {
        int level = levels->table ? levels->table[i] : i;
        table[i] = (uint8_t)(side == LK_K ? level : 2 * level - levels->top);
    }
}

static inline void make_form(struct lk_avx512_form *form, const struct lk_avx512_unpack *unpack,
                             const struct lk_codec *codec, enum lk_side side) {
    if (codec->coding == LK_INT8) {
        form->top = 2 * LK_INT8_MID;
        form->fine = true;
        unpack->levels(8, NULL, &form->levels);
        return;
    }
    struct lk_rot_codebook levels = lk_rot_codebook(codec);
    form->top = levels.top;
    form->fine = lk_avx512_needs_16bit(codec->bits);
    if (codec->trellis) {
        uint8_t table[LK_TRELLIS_LEVELS];
        for (int i = 0; i < LK_TRELLIS_LEVELS; i++)
            table[i] = (uint8_t)(side == LK_K ? levels.table[i] : 2 * levels.table[i] - levels.top);
        unpack->trellis_levels(table, &form->levels);
        return;
    }
    uint8_t table[32];
    bool given = !form->fine && (side == LK_V || levels.table);
    if (given) make_level_table(&levels, codec->bits, side, table);
    unpack->levels(codec->bits, given ? table : NULL, &form->levels);
}

/* Prefetch as many bytes as the tile has. Prefetching the next tile too makes decoding slower: by
 * 5 % with best-3 at 32k tokens, by 14 % with int8 at 8k (one thread of a Zen 4). */
LK_ALWAYS_INLINE void prefetch_tile(const struct lk_tile *tile) {
    int arrays = tile->codec->coding == LK_ASYM ? 2 : 1; /* scales, zero points */
    lk_tile_prefetch_ahead(tile, 0,
                           lk_bitplanes_bytes(tile->codec->bits, tile->d_head) +
                               arrays * sizeof(uint16_t) * LK_TILE +
                               (tile->codec->mean ? tile->d_head : 0));
}

static inline void load_params(struct lk_avx512_params *params, const struct lk_tile *tile) {
    const struct lk_codec *codec = tile->codec;
    int d = tile->d_head;
    params->mean = NULL;
    if (codec->coding == LK_INT8) {
        lk_avx512_load_scales(lk_int8_scales(tile->head, d), tile->n, params->scale);
        return;
    }
    __mmask32 sign =
        lk_avx512_load_scales(lk_rot_scales(codec, tile->head, d), tile->n, params->scale);
    if (codec->mean) {
        params->mean = lk_rot_mean(codec, tile->head, d);
        memcpy(&params->mean_scale, &sign, sizeof sign);
    }
}

/* ---- K: scores are scale_t * factor * (dot - middle) + offset ---- */

/* middle[i] = top / 2 * (sum of query i's codes), for queries [i0, i0 + n): the difference between
 * products with cells and with levels. */
static inline void dot_middle(const struct lk_avx512_form *form, const struct lk_queries *q, int i0,
                              int n, float *middle) {
    const int32_t *sum = (form->fine ? q->sum16 : q->sum8) + i0;
    __m512 half_top = _mm512_set1_ps(0.5f * (float)form->top);
    for (int i = 0; i < n; i += 16) {
        __mmask16 inside = n - i >= 16 ? 0xffff : (__mmask16)((1 << (n - i)) - 1);
        _mm512_mask_storeu_ps(
            middle + i, inside,
            _mm512_mul_ps(half_top, _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(inside, sum + i))));
    }
}

/* offset[i] = <mean, q_i> for queries [i0, i0 + n), n <= 4 constant. The mean is readable, and q16
 * zero, up to a multiple of 32 channels. */
LK_ALWAYS_INLINE void dot_mean(const struct lk_avx512_params *params, const struct lk_queries *q,
                               int i0, int n, float *offset) {
    int pad = lk_queries_pad(q->d_head);
    const int16_t *q16 = q->q16 + (size_t)i0 * pad;
    __m512i part[4];
    LK_UNROLL
    for (int i = 0; i < 4; i++) part[i] = _mm512_setzero_si512();
    for (int c = 0; c < q->d_head; c += 32) {
        __m512i code =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(params->mean + c)));
        LK_UNROLL
        for (int i = 0; i < n; i++)
            part[i] = _mm512_dpwssd_epi32(part[i], code, _mm512_loadu_si512(q16 + i * pad + c));
    }
    __m128 factor = _mm_mul_ps(_mm_set1_ps(params->mean_scale),
                               _mm_maskz_loadu_ps((__mmask8)((1 << n) - 1), q->scale16 + i0));
    _mm_storeu_ps(offset, _mm_mul_ps(factor, _mm_cvtepi32_ps(lk_avx512_hsum_i32x16_x4(part))));
}

/* Same as above for any n, 0 without a mean. offset has room up to a multiple of 16. */
static inline void dot_mean_any(const struct lk_avx512_params *params, const struct lk_queries *q,
                                int i0, int n, float *offset) {
    int i = 0;
    if (!params->mean) {
        for (; i < n; i += 16) _mm512_storeu_ps(offset + i, _mm512_setzero_ps());
        return;
    }
    for (; i + 4 <= n; i += 4) dot_mean(params, q, i0 + i, 4, offset + i);
    if (n - i == 3) dot_mean(params, q, i0 + i, 3, offset + i);
    if (n - i == 2) dot_mean(params, q, i0 + i, 2, offset + i);
    if (n - i == 1) dot_mean(params, q, i0 + i, 1, offset + i);
}

/* Scores out [LK_TILE] of one query from its dot products. */
LK_ALWAYS_INLINE void store_scores(struct token_sums dot, const struct lk_avx512_params *params,
                                   float factor, float middle, float offset, float *out) {
    __m512 scale = _mm512_set1_ps(factor), plus = _mm512_set1_ps(offset),
           minus = _mm512_set1_ps(middle);
    __m512 first = _mm512_sub_ps(_mm512_cvtepi32_ps(dot.first), minus);
    __m512 last = _mm512_sub_ps(_mm512_cvtepi32_ps(dot.last), minus);
    _mm512_storeu_ps(out, _mm512_fmadd_ps(first, _mm512_mul_ps(scale, params->scale[0]), plus));
    _mm512_storeu_ps(out + LK_AVX512_ROWS,
                     _mm512_fmadd_ps(last, _mm512_mul_ps(scale, params->scale[1]), plus));
}

/* ---- V ---- */

/* Sum of p [LK_TILE], or of p * scale if scale is not NULL. */
static inline float sum_tile_f32(const float *p, const __m512 *scale) {
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + LK_AVX512_ROWS);
    if (scale) a = _mm512_mul_ps(a, scale[0]), b = _mm512_mul_ps(b, scale[1]);
    return _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}

/* acc [d] += weight * mean */
static inline void add_mean(const struct lk_avx512_params *params, int d, float weight,
                            float *acc) {
    axpy_i8(params->mean, d, weight * params->mean_scale, acc);
}

#endif
