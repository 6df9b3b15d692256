/* Weights of values, and what else AVX-512 kernels do with a tile's scales, inlined. */
#ifndef LK_KERNELS_AVX512_WEIGHTS_H
#define LK_KERNELS_AVX512_WEIGHTS_H

#include "kernels/avx512.h"

/* Sums of four vectors. */
LK_ALWAYS_INLINE __m128i lk_avx512_totals(const __m512i v[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i c = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti32x8_epi32(a, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

/* Half floats without their signs as floats; those from n on become 0. Returns the signs. */
LK_ALWAYS_INLINE __mmask32 lk_avx512_scales(const uint16_t *half, int n, __m512 out[2]) {
    __m512i bits = _mm512_loadu_si512(half);
    __m512i inside = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    inside = _mm512_maskz_mov_epi16((__mmask32)(((uint64_t)1 << n) - 1), inside);
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(inside));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(inside, 1));
    return _mm512_movepi16_mask(bits);
}

/* Largest of each of four vectors. */
LK_ALWAYS_INLINE __m128 largest(const __m512 v[4]) {
    __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    a = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44),
                      _mm512_shuffle_ps(a, b, 0xee)); /* 0 1 2 3 in each lane */
    __m256 c = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* What is added to the weights of 16 tokens before they are cut to integers: token t's is its number with the bits
 * in reverse, in [0, 1). */
LK_ALWAYS_INLINE __m512 dither(int first) {
    const __m512 half = _mm512_setr_ps(0, 16, 8, 24, 4, 20, 12, 28, 2, 18, 10, 26, 6, 22, 14, 30);
    return _mm512_mul_ps(_mm512_add_ps(half, _mm512_set1_ps(first ? 1.5f : 0.5f)),
                         _mm512_set1_ps(1.0f / LK_TILE));
}

/* lk_avx512_weigh for n <= LK_AVX512_QUERIES queries, a constant; byte: [n] rows, step: [4]. */
LK_ALWAYS_INLINE void lk_avx512_weigh_few(const float *p, size_t stride, int n,
                                          const __m512 scale[2], bool fine,
                                          uint8_t (*byte)[2 * LK_TILE], float *step) {
    const float least =
        1e-30f; /* below it there is nothing to add, and its inverse would overflow */
    __m512 weight[LK_AVX512_QUERIES][2], most[LK_AVX512_QUERIES];
    float inverse[4], most_x = fine ? 65535 : 255;
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) {
        most[i] = _mm512_setzero_ps();
        if (i >= n) continue;
        weight[i][0] = _mm512_mul_ps(_mm512_loadu_ps(p + i * stride), scale[0]);
        weight[i][1] = _mm512_mul_ps(_mm512_loadu_ps(p + i * stride + LK_AVX512_ROWS), scale[1]);
        most[i] = _mm512_max_ps(weight[i][0], weight[i][1]);
    }
    __m128 four = largest(most), range = _mm_set1_ps(most_x);
    __mmask8 counts = _mm_cmp_ps_mask(four, _mm_set1_ps(least * 65535), _CMP_GT_OQ);
    _mm_storeu_ps(step, _mm_mul_ps(four, _mm_set1_ps(1 / most_x)));
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(counts, range, four));
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        __m512 times = _mm512_set1_ps(inverse[i]);
        if (!fine) {
            __m512i a = _mm512_cvttps_epi32(_mm512_fmadd_ps(weight[i][0], times, dither(0)));
            __m512i b = _mm512_cvttps_epi32(_mm512_fmadd_ps(weight[i][1], times, dither(1)));
            __m512i both = _mm512_packus_epi32(a, b);
            _mm512_store_si512(byte[i], _mm512_packus_epi16(both, both));
            continue;
        }
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(weight[i][0], times));
        __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(weight[i][1], times));
        __m512i both = _mm512_packus_epi32(
            a, b); /* packing works in lanes, which makes the order of the bytes */
        __m512i low = _mm512_and_si512(both, _mm512_set1_epi16(255));
        _mm512_store_si512(byte[i], _mm512_packus_epi16(_mm512_srli_epi16(both, 8), low));
    }
}

#endif
