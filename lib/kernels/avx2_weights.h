/* What AVX2 kernels do with a tile's scales and weights, inlined. */
#ifndef LK_KERNELS_AVX2_WEIGHTS_H
#define LK_KERNELS_AVX2_WEIGHTS_H

#include "kernels/avx2.h"

#include <immintrin.h>

LK_ALWAYS_INLINE float total(__m256 v) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

/* Eight half floats without their signs, as floats. */
LK_ALWAYS_INLINE __m256 to_scales8(const uint16_t *half) {
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_loadu_si128((const __m128i *)half), _mm_set1_epi16(0x7fff)));
}

/* The same of a tile; those from n on become 0. out: [LK_TILE] */
LK_ALWAYS_INLINE void to_scales(const uint16_t *half, int n, float *out) {
    LK_UNROLL
    for (int t = 0; t < LK_TILE; t += 8) _mm256_storeu_ps(out + t, to_scales8(half + t));
    for (int t = n; t < LK_TILE; t++) out[t] = 0;
}

/* acc [d] += step * code [d], d a multiple of 8. */
LK_ALWAYS_INLINE void add_codes(const int8_t *code, int d, float step, float *acc) {
    __m256 by = _mm256_set1_ps(step);
    for (int c = 0; c < d; c += 8) {
        __m256 x =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(code + c))));
        _mm256_storeu_ps(acc + c, _mm256_fmadd_ps(x, by, _mm256_loadu_ps(acc + c)));
    }
}

#endif
