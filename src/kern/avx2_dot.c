#include "kern/avx2_dot.h"

static inline __m256i mac(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

/* ---- K -------------------------------------------------------------------------------------- */

/* Tokens 16 h .. 16 h + 15. maddubs leaves sums of two products in 16 bits: `most` channel quads fit. */
LK_INLINE void dot_k8(const uint8_t *cells, int d_head, int most, const int8_t *q8, int pad, int n, int h,
                   int32_t dot[][LK_TILE]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[LK_AVX2_QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4;) {
        int end = quad + most < d_head / 4 ? quad + most : d_head / 4;
        __m256i part[LK_AVX2_QUERIES][2];
        LK_UNROLL
        for (int i = 0; i < n; i++) part[i][0] = part[i][1] = _mm256_setzero_si256();
        for (; quad < end; quad++) {
            const __m256i *cell = (const __m256i *)(cells + (quad * 4 + h * 2) * 32);
            __m256i a = _mm256_loadu_si256(cell), b = _mm256_loadu_si256(cell + 1);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                __m256i q = broadcast4(q8 + i * pad + quad * 4);
                part[i][0] = _mm256_add_epi16(part[i][0], _mm256_maddubs_epi16(a, q));
                part[i][1] = _mm256_add_epi16(part[i][1], _mm256_maddubs_epi16(b, q));
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(part[i][0], ones));
            sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(part[i][1], ones));
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16), sum[i][0]);
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16 + 8), sum[i][1]);
    }
}

static void k8(const uint8_t *cells, int d_head, int top, const int8_t *q8, int pad, int n, int32_t dot[][LK_TILE]) {
    int most = 32767 / (top * 127 * 2);
    for (int h = 0; h < 2; h++) {
        if (n == 1) dot_k8(cells, d_head, most, q8, pad, 1, h, dot);
        if (n == 2) dot_k8(cells, d_head, most, q8, pad, 2, h, dot);
        if (n == 3) dot_k8(cells, d_head, most, q8, pad, 3, h, dot);
        if (n == 4) dot_k8(cells, d_head, most, q8, pad, 4, h, dot);
    }
}

static void k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n, int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k16_all(cells, d_head, q16, pad, 1, 1, dot, mac);
    if (n == 2) dot_k16_all(cells, d_head, q16, pad, 2, 1, dot, mac);
    if (n == 3) dot_k16_all(cells, d_head, q16, pad, 3, 1, dot, mac);
    if (n == 4) dot_k16_all(cells, d_head, q16, pad, 4, 1, dot, mac);
}

/* ---- V -------------------------------------------------------------------------------------- */

static void v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, 2, dot, mac);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, 2, dot, mac);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, 1, dot, mac);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, 1, dot, mac);
}

const struct lk_avx2_dots lk_avx2_dots = {.k8 = k8, .k16 = k16, .v16 = v16};
