/* Vector helpers of the x86 kernels: horizontal sums and maxima, broadcasts, conversions of f16. */
#ifndef LK_KERNELS_AVX2_VEC_H
#define LK_KERNELS_AVX2_VEC_H

#include "kernels/avx2.h"

#include <immintrin.h>
#include <string.h>

LK_ALWAYS_INLINE float hsum_f32x8(__m256 v) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

LK_ALWAYS_INLINE float hmax_f32x8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* The four bytes at p in every 32-bit lane. */
LK_ALWAYS_INLINE __m256i set1_i8x4(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

/* Eight f16 values as floats. */
LK_ALWAYS_INLINE __m256 load_f16x8(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Eight f16 values without their signs, as floats. */
LK_ALWAYS_INLINE __m256 load_abs_f16x8(const uint16_t *half) {
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_loadu_si128((const __m128i *)half), _mm_set1_epi16(0x7fff)));
}

/* Scales of a tile's rows without their signs: out [LK_TILE], 0 from row n on. */
LK_ALWAYS_INLINE void load_tile_scales(const uint16_t *half, int n, float *out) {
    LK_UNROLL
    for (int t = 0; t < LK_TILE; t += 8) _mm256_storeu_ps(out + t, load_abs_f16x8(half + t));
    for (int t = n; t < LK_TILE; t++) out[t] = 0;
}

/* acc [d] += step * code [d], d a multiple of 8. */
LK_ALWAYS_INLINE void axpy_i8(const int8_t *code, int d, float step, float *acc) {
    __m256 by = _mm256_set1_ps(step);
    for (int c = 0; c < d; c += 8) {
        __m256 x =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(code + c))));
        _mm256_storeu_ps(acc + c, _mm256_fmadd_ps(x, by, _mm256_loadu_ps(acc + c)));
    }
}

#endif
