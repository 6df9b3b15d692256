/* Integer dot products of cells for AVX-VNNI, whose VPDPBUSD replaces two or three AVX2
 * instructions and sums in 32 bits.
 *
 * The instruction has a latency of five cycles, and two start per cycle, so ten independent sums
 * keep it busy. Up to 3 queries therefore take more tokens or channels per pass. 16-bit operands
 * are split into two planes of bytes: the sum of the high plane is shifted and the sum of the low
 * plane added to it.
 *
 * The file is compiled like the other AVX2 files; its functions request AVX-VNNI one by one. */
#include "kernels/avx2_vec.h"

#define VNNI __attribute__((target("avxvnni")))

/* sum + products, in place. In assembly, because gcc would copy the sums around the loop. */
LK_ALWAYS_INLINE __m256i dpbusd(__m256i sum, __m256i a, __m256i b) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

/* Layout of cells: octets of rows, quads of columns. */
struct grid {
    int octet, quad; /* bytes from one to the next; constants */
    int n_quad;
};

/* sum[i][k] += row i of x times cells, for `octets` (1, 2 or 4) octets of rows. x: [n] rows of
 * bytes, `step` apart. */
VNNI LK_ALWAYS_INLINE void accumulate_dot(const uint8_t *cells, struct grid grid, const int8_t *x,
                                          int step, int n, int octets,
                                          __m256i sum[LK_AVX2_QUERIES][4]) {
    for (int quad = 0; quad < grid.n_quad; quad++) {
        __m256i four[LK_AVX2_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) four[i] = set1_i8x4(x + i * step + quad * 4);
        LK_UNROLL
        for (int k = 0; k < octets; k++) {
            __m256i cell =
                _mm256_loadu_si256((const __m256i *)(cells + quad * grid.quad + k * grid.octet));
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = dpbusd(sum[i][k], cell, four[i]);
        }
    }
}

/* Rows of 8-bit numbers, or of 16-bit numbers as two planes of bytes; rows are `step` apart. */
struct operand {
    const int8_t *high, *low; /* high: NULL for 8 bits */
    int step;
};

/* out[i * stride + r] = dot product of row i of x with row r of the octets. */
VNNI LK_ALWAYS_INLINE void dot_octets(const uint8_t *cells, struct grid grid,
                                      const struct operand *x, int n, int octets, int32_t *out,
                                      int stride) {
    __m256i sum[LK_AVX2_QUERIES][4];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++) sum[i][k] = _mm256_setzero_si256();
    if (x->high) {
        accumulate_dot(cells, grid, x->high, x->step, n, octets, sum);
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int k = 0; k < octets; k++) sum[i][k] = _mm256_slli_epi32(sum[i][k], 8);
    }
    accumulate_dot(cells, grid, x->low, x->step, n, octets, sum);
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++)
        _mm256_storeu_si256((__m256i *)(out + i * stride + k * 8), sum[i][k]);
}

/* Split n 16-bit numbers, a multiple of 8, into planes of bytes: x16 = 256 * high + low. */
static void split_i16(const int16_t *x16, int n, int8_t *high, int8_t *low) {
    int c = 0;
    for (; c + 32 <= n; c += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(x16 + c)),
                b = _mm256_loadu_si256((const __m256i *)(x16 + c + 16));
        __m256i half = _mm256_set1_epi16(128);
        __m256i h = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_add_epi16(a, half), 8),
                                       _mm256_srai_epi16(_mm256_add_epi16(b, half), 8));
        __m256i l = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8),
                                       _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
        _mm256_storeu_si256((__m256i *)(high + c), _mm256_permute4x64_epi64(h, 0xd8));
        _mm256_storeu_si256((__m256i *)(low + c), _mm256_permute4x64_epi64(l, 0xd8));
    }
    for (; c < n; c++) {
        high[c] = lk_high_byte(x16[c]);
        low[c] = lk_low_byte(x16[c]);
    }
}

VNNI LK_ALWAYS_INLINE void dot_k(const uint8_t *cells, int d_head, const struct operand *x, int n,
                                 int32_t out[][LK_TILE]) {
    const struct grid grid = {.octet = 32, .quad = 128, .n_quad = d_head / 4};
    int octets = n < 4 ? 4 : 2;
    LK_UNROLL
    for (int o = 0; o < 4; o += octets)
        dot_octets(cells + o * 32, grid, x, n, octets, out[0] + o * 8, LK_TILE);
}

VNNI static void dot_k_any(const uint8_t *cells, int d_head, const struct operand *x, int n,
                           int32_t out[][LK_TILE]) {
    if (n == 1) dot_k(cells, d_head, x, 1, out);
    if (n == 2) dot_k(cells, d_head, x, 2, out);
    if (n == 3) dot_k(cells, d_head, x, 3, out);
    if (n == 4) dot_k(cells, d_head, x, 4, out);
}

VNNI static void k8_vnni(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n,
                         int32_t out[][LK_TILE]) {
    struct operand x = {NULL, q8, pad};
    dot_k_any(cells, d_head, &x, n, out);
}

VNNI static void k16_vnni(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                          int32_t out[][LK_TILE]) {
    int8_t high[LK_AVX2_QUERIES][LK_MAX_D_HEAD], low[LK_AVX2_QUERIES][LK_MAX_D_HEAD];
    for (int i = 0; i < n; i++) split_i16(q16 + i * pad, d_head, high[i], low[i]);
    struct operand x = {high[0], low[0], LK_MAX_D_HEAD};
    dot_k_any(cells, d_head, &x, n, out);
}

VNNI LK_ALWAYS_INLINE void dot_v(const uint8_t *cells, int n_channel, const struct operand *p,
                                 int n, int32_t out[][LK_MAX_D_HEAD]) {
    const struct grid grid = {.octet = 8 * LK_TILE, .quad = 32, .n_quad = LK_TILE / 4};
    int c = 0;
    if (n < 4)
        for (; c + 32 <= n_channel; c += 32)
            dot_octets(cells + c * LK_TILE, grid, p, n, 4, out[0] + c, LK_MAX_D_HEAD);
    for (; c + 16 <= n_channel; c += 16)
        dot_octets(cells + c * LK_TILE, grid, p, n, 2, out[0] + c, LK_MAX_D_HEAD);
    if (c < n_channel) dot_octets(cells + c * LK_TILE, grid, p, n, 1, out[0] + c, LK_MAX_D_HEAD);
}

VNNI static void v16_vnni(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n,
                          int32_t out[][LK_MAX_D_HEAD]) {
    int8_t high[LK_AVX2_QUERIES][LK_TILE], low[LK_AVX2_QUERIES][LK_TILE];
    for (int i = 0; i < n; i++) split_i16(p16[i], LK_TILE, high[i], low[i]);
    struct operand p = {high[0], low[0], LK_TILE};
    if (n == 1) dot_v(cells, n_channel, &p, 1, out);
    if (n == 2) dot_v(cells, n_channel, &p, 2, out);
    if (n == 3) dot_v(cells, n_channel, &p, 3, out);
    if (n == 4) dot_v(cells, n_channel, &p, 4, out);
}

const struct lk_avx2_dots lk_avxvnni_dots = {.k8 = k8_vnni, .k16 = k16_vnni, .v16 = v16_vnni};
