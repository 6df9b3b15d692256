#include "kernels/avx2_dot.h"

static inline __m256i mac(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* ---- K ---- */

static void k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k16_all(cells, d_head, q16, pad, 1, 1, dot, mac);
    if (n == 2) dot_k16_all(cells, d_head, q16, pad, 2, 1, dot, mac);
    if (n == 3) dot_k16_all(cells, d_head, q16, pad, 3, 1, dot, mac);
    if (n == 4) dot_k16_all(cells, d_head, q16, pad, 4, 1, dot, mac);
}

/* ---- V ---- */

static void v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n,
                int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, 2, dot, mac);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, 2, dot, mac);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, 1, dot, mac);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, 1, dot, mac);
}

const struct lk_avx2_dots lk_avx2_dots = {.k16 = k16, .v16 = v16};
