/* Integer dot products of cells with n queries, written once over the instruction that multiplies pairs
 * of 16-bit numbers and adds them to 32-bit sums. n and mac are constants wherever these are called, so
 * that loops over queries unroll and sums stay in registers. */
#ifndef LK_KERNELS_AVX2_DOT_H
#define LK_KERNELS_AVX2_DOT_H

#include "kernels/avx2.h"

#include <immintrin.h>
#include <string.h>

typedef __m256i multiply_add(__m256i sum, __m256i a, __m256i b);

LK_ALWAYS_INLINE __m256i broadcast4(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

LK_ALWAYS_INLINE __m256i widen(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

/* ---- K ---- */

/* `octets` (1 or 2) times 8 tokens from 8 o on. 255 * LK_MAX_X16 * 256 channels fit into 32 bits. */
LK_ALWAYS_INLINE void dot_k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                              int o, int octets, int32_t dot[][LK_TILE], multiply_add *mac) {
    __m256i sum[LK_AVX2_QUERIES][4]; /* 4 tokens each, two partial sums per token */
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2 * octets; k++) sum[i][k] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4; quad++) {
        __m256i q[LK_AVX2_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            int64_t four;
            memcpy(&four, q16 + i * pad + quad * 4, sizeof four);
            q[i] = _mm256_set1_epi64x(four);
        }
        LK_UNROLL
        for (int k = 0; k < 2 * octets; k++) {
            __m256i code = widen(cells + (quad * 4 + o) * 32 + k * 16);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = mac(sum[i][k], code, q[i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++) {
        __m256i both =
            _mm256_hadd_epi32(sum[i][2 * k], sum[i][2 * k + 1]); /* t0 t1 t4 t5 | t2 t3 t6 t7 */
        _mm256_storeu_si256((__m256i *)(dot[i] + (o + k) * 8),
                            _mm256_permute4x64_epi64(both, 0xd8));
    }
}

LK_ALWAYS_INLINE void dot_k16_all(const uint8_t *cells, int d_head, const int16_t *q16, int pad,
                                  int n, int octets, int32_t dot[][LK_TILE], multiply_add *mac) {
    for (int o = 0; o < LK_TILE / 8; o += octets)
        dot_k16(cells, d_head, q16, pad, n, o, octets, dot, mac);
}

/* ---- V ---- */

/* `octets` (1 or 2) times 8 channels from c on. */
LK_ALWAYS_INLINE void dot_v16(const uint8_t *cells, int c, int octets, int16_t p16[][LK_TILE],
                              int n, int32_t dot[][LK_MAX_D_HEAD], multiply_add *mac) {
    const uint8_t *cell = cells + c * LK_TILE;
    __m256i sum[LK_AVX2_QUERIES][4]; /* 4 channels each, two partial sums per channel */
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2 * octets; k++) sum[i][k] = _mm256_setzero_si256();
    for (int quad = 0; quad < LK_TILE / 4; quad++) {
        __m256i p[LK_AVX2_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            int64_t four;
            memcpy(&four, p16[i] + quad * 4, sizeof four);
            p[i] = _mm256_set1_epi64x(four);
        }
        LK_UNROLL
        for (int k = 0; k < 2 * octets; k++) {
            __m256i code = widen(cell + k / 2 * 8 * LK_TILE + quad * 32 + k % 2 * 16);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = mac(sum[i][k], code, p[i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++) {
        __m256i both = _mm256_hadd_epi32(sum[i][2 * k], sum[i][2 * k + 1]);
        _mm256_storeu_si256((__m256i *)(dot[i] + c + k * 8), _mm256_permute4x64_epi64(both, 0xd8));
    }
}

LK_ALWAYS_INLINE void dot_v16_all(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE],
                                  int n, int octets, int32_t dot[][LK_MAX_D_HEAD],
                                  multiply_add *mac) {
    int c = 0;
    for (; c + 8 * octets <= n_channel; c += 8 * octets)
        dot_v16(cells, c, octets, p16, n, dot, mac);
    if (c < n_channel) dot_v16(cells, c, 1, p16, n, dot, mac);
}

#endif
