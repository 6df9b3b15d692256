/* rot and int8, as all AVX2 kernels read them: x = scale_t * (cell - top / 2) + mean, cell a byte between 0 and top. */
#ifndef LK_KERN_AVX2_ROW_H
#define LK_KERN_AVX2_ROW_H

#include <string.h>

#include "codec/int8.h"
#include "codec/rot.h"
#include "kern/avx2_weights.h"

/* What of a tile is not in its codes. */
struct rows {
    const int8_t *mean;       /* [d_head], NULL without */
    float         mean_scale;
    float         scale[LK_TILE]; /* 0 from the tile's last row on */
};

static inline float read_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < LK_TILE; t += 16) { /* a sign bit per byte: packs keeps signs */
        __m256i half = _mm256_loadu_si256((const __m256i *)(scale + t));
        __m128i sign = _mm_packs_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        bits |= (uint32_t)_mm_movemask_epi8(sign) << t;
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void read_rows(struct rows *rows, const struct lk_tile *tile) {
    const struct lk_codec *codec = tile->codec;
    int d = tile->d_head;
    rows->mean = NULL;
    if (codec->coding == LK_INT8) {
        to_scales(lk_int8_scales(tile->head, d), tile->n, rows->scale);
        return;
    }
    const uint16_t *scale = lk_rot_scales(codec, tile->head, d);
    to_scales(scale, tile->n, rows->scale);
    if (!codec->mean) return;
    rows->mean = lk_rot_mean(codec, tile->head, d);
    rows->mean_scale = read_mean_scale(scale);
}

/* As find_offset, n a constant; offset has room for LK_AVX2_QUERIES. The mean is readable and q16 zero up to a multiple of 16 channels. */
LK_INLINE void dot_mean(const struct rows *rows, const struct lk_queries *q, int i0, int n, float *offset) {
    int pad = lk_queries_pad(q->d_head);
    const int16_t *q16 = q->q16 + (size_t)i0 * pad;
    __m256i part[LK_AVX2_QUERIES];
    float factor[LK_AVX2_QUERIES] = {0};
    LK_UNROLL
    for (int i = 0; i < LK_AVX2_QUERIES; i++) part[i] = _mm256_setzero_si256();
    for (int c = 0; c < q->d_head; c += 16) {
        __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(rows->mean + c)));
        LK_UNROLL
        for (int i = 0; i < n; i++)
            part[i] = _mm256_add_epi32(part[i], _mm256_madd_epi16(code, _mm256_loadu_si256((const __m256i *)(q16 + i * pad + c))));
    }
    __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(part[0], part[1]), _mm256_hadd_epi32(part[2], part[3]));
    __m128 sum = _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)));
    LK_UNROLL
    for (int i = 0; i < n; i++) factor[i] = q->scale16[i0 + i];
    _mm_storeu_ps(offset, _mm_mul_ps(sum, _mm_mul_ps(_mm_loadu_ps(factor), _mm_set1_ps(rows->mean_scale))));
}

/* offset = <mean, q> of queries [i0, i0 + n), n <= LK_AVX2_QUERIES. */
static inline void find_offset(const struct rows *rows, const struct lk_queries *q, int i0, int n, float *offset) {
    if (n == 1) dot_mean(rows, q, i0, 1, offset);
    if (n == 2) dot_mean(rows, q, i0, 2, offset);
    if (n == 3) dot_mean(rows, q, i0, 3, offset);
    if (n == 4) dot_mean(rows, q, i0, 4, offset);
}

/* As many bytes as the tile has. */
LK_INLINE void fetch(const struct lk_tile *tile) {
    lk_tile_fetch(tile, 0, lk_cells_bytes(tile->codec->bits, tile->d_head) + sizeof(uint16_t) * LK_TILE + (tile->codec->mean ? tile->d_head : 0));
}

/* Sum of p [LK_TILE]. */
static inline float sum_of(const float *p) {
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)), b = _mm256_add_ps(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24));
    return total(_mm256_add_ps(a, b));
}

/* acc [d] += weight * mean */
static inline void add_mean(const struct rows *rows, int d, float weight, float *acc) {
    add_codes(rows->mean, d, weight * rows->mean_scale, acc);
}

#endif
