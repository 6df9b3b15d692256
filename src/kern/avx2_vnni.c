/* AVX-VNNI: one instruction where AVX2 has two or three, with no 16-bit sums that fill up. It takes
 * five cycles, so ten sums are wanted at once: more tokens or channels per pass for up to 3 queries.
 * This file's functions ask for it one by one, as the file is compiled like the other AVX2 files. */
#include "kern/avx2_dot.h"

#define VNNI __attribute__((target("avxvnni")))

VNNI static inline __m256i mac(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }

/* `octets` (2 or 4) times 8 tokens from 8 o on. */
VNNI LK_INLINE void dot_k8(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n, int o, int octets,
                        int32_t dot[][LK_TILE]) {
    __m256i sum[LK_AVX2_QUERIES][4];
    LK_UNROLL
    for (int i = 0; i < n; i++)
        LK_UNROLL
        for (int k = 0; k < octets; k++) sum[i][k] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4; quad++) {
        __m256i q[LK_AVX2_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) q[i] = broadcast4(q8 + i * pad + quad * 4);
        LK_UNROLL
        for (int k = 0; k < octets; k++) {
            __m256i cell = _mm256_loadu_si256((const __m256i *)(cells + (quad * 4 + o + k) * 32));
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = _mm256_dpbusd_avx_epi32(sum[i][k], cell, q[i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++)
        LK_UNROLL
        for (int k = 0; k < octets; k++) _mm256_storeu_si256((__m256i *)(dot[i] + (o + k) * 8), sum[i][k]);
}

VNNI static void k8(const uint8_t *cells, int d_head, int top, const int8_t *q8, int pad, int n, int32_t dot[][LK_TILE]) {
    (void)top;
    if (n == 1) dot_k8(cells, d_head, q8, pad, 1, 0, 4, dot);
    if (n == 2) dot_k8(cells, d_head, q8, pad, 2, 0, 4, dot);
    if (n == 3) dot_k8(cells, d_head, q8, pad, 3, 0, 4, dot);
    if (n == 4) {
        dot_k8(cells, d_head, q8, pad, 4, 0, 2, dot);
        dot_k8(cells, d_head, q8, pad, 4, 2, 2, dot);
    }
}

VNNI static void k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n, int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k16_all(cells, d_head, q16, pad, 1, 2, dot, mac);
    if (n == 2) dot_k16_all(cells, d_head, q16, pad, 2, 2, dot, mac);
    if (n == 3) dot_k16_all(cells, d_head, q16, pad, 3, 2, dot, mac);
    if (n == 4) dot_k16_all(cells, d_head, q16, pad, 4, 1, dot, mac);
}

VNNI static void v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, 4, dot, mac);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, 4, dot, mac);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, 4, dot, mac);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, 2, dot, mac);
}

const struct lk_avx2_dots lk_avxvnni_dots = {.k8 = k8, .k16 = k16, .v16 = v16};
