/* AVX-VNNI: one instruction where AVX2 has two or three, with no 16-bit sums that fill up. This file's
 * functions ask for it one by one, as the file itself is compiled like the other AVX2 files. */
#include "kern/avx2_dot.h"

#define VNNI __attribute__((target("avxvnni")))

VNNI static inline __m256i mac(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }

/* Tokens 16 h .. 16 h + 15. */
VNNI INLINE void dot_k8(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n, int h, int32_t dot[][LK_TILE]) {
    __m256i sum[LK_AVX2_QUERIES][2];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4; quad++) {
        const __m256i *cell = (const __m256i *)(cells + (quad * 4 + h * 2) * 32);
        __m256i a = _mm256_loadu_si256(cell), b = _mm256_loadu_si256(cell + 1);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            __m256i q = broadcast4(q8 + i * pad + quad * 4);
            sum[i][0] = _mm256_dpbusd_avx_epi32(sum[i][0], a, q);
            sum[i][1] = _mm256_dpbusd_avx_epi32(sum[i][1], b, q);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16), sum[i][0]);
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16 + 8), sum[i][1]);
    }
}

VNNI static void k8(const uint8_t *cells, int d_head, int top, const int8_t *q8, int pad, int n, int32_t dot[][LK_TILE]) {
    (void)top;
    for (int h = 0; h < 2; h++) {
        if (n == 1) dot_k8(cells, d_head, q8, pad, 1, h, dot);
        if (n == 2) dot_k8(cells, d_head, q8, pad, 2, h, dot);
        if (n == 3) dot_k8(cells, d_head, q8, pad, 3, h, dot);
        if (n == 4) dot_k8(cells, d_head, q8, pad, 4, h, dot);
    }
}

VNNI static void k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n, int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k16_all(cells, d_head, q16, pad, 1, dot, mac);
    if (n == 2) dot_k16_all(cells, d_head, q16, pad, 2, dot, mac);
    if (n == 3) dot_k16_all(cells, d_head, q16, pad, 3, dot, mac);
    if (n == 4) dot_k16_all(cells, d_head, q16, pad, 4, dot, mac);
}

VNNI static void v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, dot, mac);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, dot, mac);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, dot, mac);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, dot, mac);
}

const struct lk_avx2_dots lk_avxvnni_dots = {.k8 = k8, .k16 = k16, .v16 = v16};
