/* KIVI for AVX2: x = scale * code + min. The scale and the minimum of a channel (K) are multiplied
 * into the query, those of a token (V) into its weight. Codes are then only multiplied with
 * integers. */
#include "codec/kivi.h"
#include "kernels/avx2_vec.h"

static void load_f16(const uint16_t *half, int n, float *out) {
    for (int c = 0; c < n; c += 8) _mm256_storeu_ps(out + c, load_f16x8(half + c));
}

static float max_abs_f32(const float *x, int n) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 max = _mm256_setzero_ps();
    for (int c = 0; c < n; c += 8)
        max = _mm256_max_ps(max, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + c)));
    return hmax_f32x8(max);
}

/* q [d] * scale [d] ~ step * q16. Returns step. 16 bits, because a few channels of K have most of
 * the range. */
static float quantize_query(const float *q, const float *scale, int d, int16_t *q16) {
    float scaled[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c += 8)
        _mm256_storeu_ps(scaled + c,
                         _mm256_mul_ps(_mm256_loadu_ps(q + c), _mm256_loadu_ps(scale + c)));
    float step = max_abs_f32(scaled, d) / lk_max_x16_nibbles(d);
    __m256 inverse = _mm256_set1_ps(step > LK_MIN_STEP ? 1 / step : 0);
    for (int c = 0; c < d; c += 8) {
        __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(scaled + c), inverse));
        _mm_storeu_si128((__m128i *)(q16 + c), _mm_packs_epi32(_mm256_castsi256_si128(x),
                                                               _mm256_extracti128_si256(x, 1)));
    }
    return step;
}

static void score_tile(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                       const struct lk_queries *q, float *s, size_t stride) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int16_t q16[LK_AVX2_QUERIES * LK_MAX_D_HEAD];
    int32_t dot[LK_AVX2_QUERIES][LK_TILE];
    float scale[LK_MAX_D_HEAD], min[LK_MAX_D_HEAD], step[LK_AVX2_QUERIES], offset[LK_AVX2_QUERIES];
    int d = tile->d_head;
    lk_tile_prefetch(tile, 0, lk_bitplanes_bytes(tile->codec->bits, d));
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_K, tile->head, d);
    load_f16(half, d, scale);
    load_f16(half + d, d, min);
    const void *codes = lk_kivi_tile(tile->codec, tile->head, d, tile->row0);
    const uint8_t *cells = lk_avx2_unpack(tile->codec->bits, d, codes, NULL, buf);
    for (int i0 = 0; i0 < q->n_q; i0 += LK_AVX2_QUERIES) {
        int n = q->n_q - i0 < LK_AVX2_QUERIES ? q->n_q - i0 : LK_AVX2_QUERIES;
        for (int j = 0; j < n; j++) {
            const float *row = q->q + (size_t)(i0 + j) * d;
            step[j] = quantize_query(row, scale, d, q16 + j * d);
            offset[j] = lk_avx2_dot_f32(row, min, d);
        }
        dots->k16(cells, d, q16, d, n, dot);
        for (int j = 0; j < n; j++)
            for (int t = 0; t < LK_TILE; t += 8) {
                __m256 x = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(dot[j] + t)));
                x = _mm256_fmadd_ps(x, _mm256_set1_ps(step[j]), _mm256_set1_ps(offset[j]));
                _mm256_storeu_ps(s + (i0 + j) * stride + t, x);
            }
    }
}

/* Group g of channels, for n <= LK_AVX2_QUERIES queries. */
static void accumulate_group(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                             const uint8_t *cells, int g, const float *p, size_t stride, int n,
                             float *acc) {
    int16_t p16[LK_AVX2_QUERIES][LK_TILE];
    int32_t sum, dot[LK_AVX2_QUERIES][LK_MAX_D_HEAD];
    float step[LK_AVX2_QUERIES], offset[LK_AVX2_QUERIES], scale[LK_TILE], min[LK_TILE];
    int d = tile->d_head, group = tile->codec->group;
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_V, tile->head, d);
    load_tile_scales(half + g * LK_TILE, tile->n, scale);
    load_f16(half + lk_kivi_groups(tile->codec, LK_V, d) + g * LK_TILE, LK_TILE, min);
    for (int t = tile->n; t < LK_TILE; t++) min[t] = 0;
    for (int j = 0; j < n; j++) {
        step[j] = lk_avx2_quantize_weights(p + j * stride, scale, p16[j], &sum);
        offset[j] = lk_avx2_dot_f32(p + j * stride, min, LK_TILE);
    }
    dots->v16(cells + g * group * LK_TILE, group, p16, n, dot);
    for (int j = 0; j < n; j++) {
        float *out = acc + (size_t)j * d + g * group;
        for (int c = 0; c < group; c += 8) {
            __m256 x = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(dot[j] + c)));
            x = _mm256_fmadd_ps(x, _mm256_set1_ps(step[j]), _mm256_set1_ps(offset[j]));
            _mm256_storeu_ps(out + c, _mm256_add_ps(_mm256_loadu_ps(out + c), x));
        }
    }
}

static void accumulate_tile(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                            const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int d = tile->d_head;
    lk_tile_prefetch(tile, 0, lk_codec_head_bytes(tile->codec, LK_V, d, LK_TILE));
    const uint8_t *cells = lk_avx2_unpack(tile->codec->bits, d, tile->head, NULL, buf);
    for (int i0 = 0; i0 < n_q; i0 += LK_AVX2_QUERIES) {
        int n = n_q - i0 < LK_AVX2_QUERIES ? n_q - i0 : LK_AVX2_QUERIES;
        for (int g = 0; g < d / tile->codec->group; g++)
            accumulate_group(dots, tile, cells, g, p + i0 * stride, stride, n,
                             acc + (size_t)i0 * d);
    }
}

void lk_avx2_kivi_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                        const struct lk_queries *q, float *s, size_t stride) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(kernels->dots, &tile, q, s, stride);
    }
}

void lk_avx2_kivi_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                             const float *p, size_t stride, int n_q, float *acc) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(kernels->dots, &tile, p, stride, n_q, acc);
    }
}
