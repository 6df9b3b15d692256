/* Integer dot products of cells with n queries, for AVX2: cells are widened to 16 bits. n is
 * constant after inlining, so that loops over queries unroll and sums stay in registers. */
#include "kernels/avx2_vec.h"

LK_ALWAYS_INLINE __m256i load_u8x16_as_i16(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

LK_ALWAYS_INLINE __m256i mul_sum_i16_pairs(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* ---- K ---- */

/* Tokens 8 o .. 8 o + 7. Sums of 255 * LK_MAX_X16 * 256 channels fit into 32 bits. */
LK_ALWAYS_INLINE void dot_k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                              int o, int32_t dot[][LK_TILE]) {
    __m256i sum[LK_AVX2_QUERIES][2]; /* 4 tokens each, two partial sums per token */
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2; k++) sum[i][k] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4; quad++) {
        __m256i q[LK_AVX2_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            int64_t four;
            memcpy(&four, q16 + i * pad + quad * 4, sizeof four);
            q[i] = _mm256_set1_epi64x(four);
        }
        LK_UNROLL
        for (int k = 0; k < 2; k++) {
            __m256i code = load_u8x16_as_i16(cells + (quad * 4 + o) * 32 + k * 16);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = mul_sum_i16_pairs(sum[i][k], code, q[i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        __m256i both = _mm256_hadd_epi32(sum[i][0], sum[i][1]); /* t0 t1 t4 t5 | t2 t3 t6 t7 */
        _mm256_storeu_si256((__m256i *)(dot[i] + o * 8), _mm256_permute4x64_epi64(both, 0xd8));
    }
}

LK_ALWAYS_INLINE void dot_k16_all(const uint8_t *cells, int d_head, const int16_t *q16, int pad,
                                  int n, int32_t dot[][LK_TILE]) {
    for (int o = 0; o < LK_TILE / 8; o++) dot_k16(cells, d_head, q16, pad, n, o, dot);
}

static void k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k16_all(cells, d_head, q16, pad, 1, dot);
    if (n == 2) dot_k16_all(cells, d_head, q16, pad, 2, dot);
    if (n == 3) dot_k16_all(cells, d_head, q16, pad, 3, dot);
    if (n == 4) dot_k16_all(cells, d_head, q16, pad, 4, dot);
}

/* Products of pairs fit into 16 bits: 2 * 127 * 127 < 2^15. */
LK_ALWAYS_INLINE void dot_k8(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n,
                             int32_t dot[][LK_TILE]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int half = 0; half < 2; half++) { /* two octets of tokens */
        __m256i sum[LK_AVX2_QUERIES][2];
        LK_UNROLL
        for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
        for (int quad = 0; quad < d_head / 4; quad++) {
            const __m256i *cell = (const __m256i *)(cells + (quad * 4 + 2 * half) * 32);
            __m256i code[2] = {_mm256_load_si256(cell), _mm256_load_si256(cell + 1)};
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                int32_t four;
                memcpy(&four, q8 + i * pad + quad * 4, sizeof four);
                LK_UNROLL
                for (int k = 0; k < 2; k++)
                    sum[i][k] = mul_sum_i16_pairs(
                        sum[i][k], _mm256_maddubs_epi16(code[k], _mm256_set1_epi32(four)), ones);
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int k = 0; k < 2; k++)
            _mm256_storeu_si256((__m256i *)(dot[i] + 16 * half + 8 * k), sum[i][k]);
    }
}

static void k8(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n,
               int32_t dot[][LK_TILE]) {
    if (n == 1) dot_k8(cells, d_head, q8, pad, 1, dot);
    if (n == 2) dot_k8(cells, d_head, q8, pad, 2, dot);
    if (n == 3) dot_k8(cells, d_head, q8, pad, 3, dot);
    if (n == 4) dot_k8(cells, d_head, q8, pad, 4, dot);
}

/* ---- V ---- */

/* 8 * octets channels from c on, octets = 1 or 2. */
LK_ALWAYS_INLINE void dot_v16(const uint8_t *cells, int c, int octets, int16_t p16[][LK_TILE],
                              int n, int32_t dot[][LK_MAX_D_HEAD]) {
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
            __m256i code = load_u8x16_as_i16(cell + k / 2 * 8 * LK_TILE + quad * 32 + k % 2 * 16);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = mul_sum_i16_pairs(sum[i][k], code, p[i]);
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
                                  int n, int octets, int32_t dot[][LK_MAX_D_HEAD]) {
    int c = 0;
    for (; c + 8 * octets <= n_channel; c += 8 * octets) dot_v16(cells, c, octets, p16, n, dot);
    if (c < n_channel) dot_v16(cells, c, 1, p16, n, dot);
}

static void v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n,
                int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, 2, dot);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, 2, dot);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, 1, dot);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, 1, dot);
}

const struct lk_avx2_dots lk_avx2_dots = {.k8 = k8, .k16 = k16, .v16 = v16};
