/* Parameters of rot, asym and int8 tiles for AVX2: x = scale_t * (cell - top / 2) + mean,
 * 0 <= cell <= top. Zero points of asym are added afterwards (vec8_kernels.c). */
#ifndef LK_KERNELS_AVX2_PER_TOKEN_H
#define LK_KERNELS_AVX2_PER_TOKEN_H

#include "codec/int8.h"
#include "codec/rot.h"
#include "kernels/avx2_vec.h"

#include <string.h>

/* Mean of a tile's rows: scale * code. */
struct lk_avx2_mean {
    const int8_t *code; /* [d_head]; NULL: no mean */
    float scale;
};

/* Everything of a tile but its codes. */
struct lk_avx2_params {
    struct lk_avx2_mean mean;
    float scale[LK_TILE]; /* 0 after the tile's last row */
};

static inline float load_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < LK_TILE; t += 16) { /* one sign bit per byte: packs keeps signs */
        __m256i half = _mm256_loadu_si256((const __m256i *)(scale + t));
        __m128i sign =
            _mm_packs_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        bits |= (uint32_t)_mm_movemask_epi8(sign) << t;
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Mean of a rot tile; its f32 scale is in the sign bits of `scale` [LK_TILE] (codec/rot.h). */
static inline struct lk_avx2_mean load_mean(const struct lk_tile *tile, const uint16_t *scale) {
    if (!tile->codec->mean) return (struct lk_avx2_mean){NULL, 0};
    return (struct lk_avx2_mean){lk_rot_mean(tile->codec, tile->head, tile->d_head),
                                 load_mean_scale(scale)};
}

static inline void load_params(struct lk_avx2_params *params, const struct lk_tile *tile) {
    bool int8 = tile->codec->coding == LK_INT8;
    const uint16_t *scale = int8 ? lk_int8_scales(tile->head, tile->d_head)
                                 : lk_rot_scales(tile->codec, tile->head, tile->d_head);
    load_tile_scales(scale, tile->n, params->scale);
    params->mean = int8 ? (struct lk_avx2_mean){NULL, 0} : load_mean(tile, scale);
}

/* scale16 of queries [i0, i0 + n), padded with 0. */
static inline __m128 load_scale16(const struct lk_queries *q, int i0, int n) {
    float scale[LK_AVX2_QUERIES] = {0};
    for (int i = 0; i < n; i++) scale[i] = q->scale16[i0 + i];
    return _mm_loadu_ps(scale);
}

/* part[i] += products of 16 channels of the mean and of query i. */
LK_ALWAYS_INLINE void mul_sum_mean_16(const int8_t *mean, const int16_t *q16, int pad, int n,
                                      __m256i *part) {
    __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)mean));
    LK_UNROLL
    for (int i = 0; i < n; i++)
        part[i] = _mm256_add_epi32(
            part[i], _mm256_madd_epi16(code, _mm256_loadu_si256((const __m256i *)(q16 + i * pad))));
}

/* offset[i] = <mean, q_i> for n <= LK_AVX2_QUERIES queries, a constant; offset has LK_AVX2_QUERIES
 * elements. q16 [n][lk_queries_pad(d)] is zero after the last channel, and the mean is readable up
 * to a multiple of 16 channels. scale16: load_scale16 */
LK_ALWAYS_INLINE void dot_mean(int n, const struct lk_avx2_mean *mean, int d, const int16_t *q16,
                               __m128 scale16, float *offset) {
    int pad = lk_queries_pad(d), c = 0;
    __m256i part[LK_AVX2_QUERIES];
    LK_UNROLL
    for (int i = 0; i < LK_AVX2_QUERIES; i++) part[i] = _mm256_setzero_si256();
    for (; c + 64 <= d; c += 64) LK_UNROLL
    for (int k = 0; k < 64; k += 16) mul_sum_mean_16(mean->code + c + k, q16 + c + k, pad, n, part);
    for (; c < d; c += 16) mul_sum_mean_16(mean->code + c, q16 + c, pad, n, part);
    __m256i four =
        _mm256_hadd_epi32(_mm256_hadd_epi32(part[0], part[1]), _mm256_hadd_epi32(part[2], part[3]));
    __m128 sum = _mm_cvtepi32_ps(
        _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
    _mm_storeu_ps(offset, _mm_mul_ps(sum, _mm_mul_ps(scale16, _mm_set1_ps(mean->scale))));
}

/* Same as above, for queries [i0, i0 + n) and any n. */
static inline void dot_mean_any(const struct lk_avx2_mean *mean, const struct lk_queries *q, int i0,
                                int n, float *offset) {
    const int16_t *q16 = q->q16 + (size_t)i0 * lk_queries_pad(q->d_head);
    __m128 scale16 = load_scale16(q, i0, n);
    if (n == 1) dot_mean(1, mean, q->d_head, q16, scale16, offset);
    if (n == 2) dot_mean(2, mean, q->d_head, q16, scale16, offset);
    if (n == 3) dot_mean(3, mean, q->d_head, q16, scale16, offset);
    if (n == 4) dot_mean(4, mean, q->d_head, q16, scale16, offset);
}

/* Bytes of a tile: cells, scales and mean. */
LK_ALWAYS_INLINE size_t tile_bytes(const struct lk_tile *tile) {
    int arrays = tile->codec->coding == LK_ASYM ? 2 : 1; /* scales, zero points */
    return lk_bitplanes_bytes(tile->codec->bits, tile->d_head) +
           arrays * sizeof(uint16_t) * LK_TILE + (tile->codec->mean ? tile->d_head : 0);
}

LK_ALWAYS_INLINE void prefetch_tile(const struct lk_tile *tile) {
    lk_tile_prefetch_ahead(tile, 0, tile_bytes(tile));
}

/* Sum of p [LK_TILE]. */
static inline float sum_tile_f32(const float *p) {
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)),
           b = _mm256_add_ps(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24));
    return hsum_f32x8(_mm256_add_ps(a, b));
}

/* acc [d] += weight * mean */
static inline void add_mean(const struct lk_avx2_mean *mean, int d, float weight, float *acc) {
    axpy_i8(mean->code, d, weight * mean->scale, acc);
}

#endif
