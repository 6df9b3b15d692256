/* Integer dot products of unpacked groups with up to four operands. n and groups are constants
 * wherever these are called, so that loops unroll and sums stay in registers. VPDPBUSD takes five cycles
 * and two of them start in each: ten sums at once keep it busy. */
#ifndef LK_KERNELS_AVX512_DOT_H
#define LK_KERNELS_AVX512_DOT_H

#include "kernels/avx512.h"

#include <string.h>

/* sum + products, in place: left to itself, gcc copies the sums around the loop. */
LK_ALWAYS_INLINE __m512i dpbusd(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* Four bytes for every row. */
LK_ALWAYS_INLINE __m512i four_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Sums of four queries, 16 rows each: of K [query][turn][group], where quads of channels go into two sums
 * by turns; of V [query][group]. */
struct sums {
    __m512i of[LK_AVX512_QUERIES][4];
};

LK_ALWAYS_INLINE struct sums no_sums(void) {
    struct sums sum;
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) LK_UNROLL
    for (int k = 0; k < 4; k++) sum.of[i][k] = _mm512_setzero_si512();
    return sum;
}

/* Sums of high bytes, before those of low bytes are added to them. */
LK_ALWAYS_INLINE struct sums as_high(struct sums sum) {
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) LK_UNROLL
    for (int k = 0; k < 4; k++) sum.of[i][k] = _mm512_slli_epi32(sum.of[i][k], 8);
    return sum;
}

/* q: [n] rows of bytes, `step` apart */
LK_ALWAYS_INLINE struct sums dot_k(struct sums sum, const uint8_t *cells, int d_head,
                                   const int8_t *q, size_t step, int n) {
    for (int c = 0; c < d_head; c += 8) LK_UNROLL
    for (int turn = 0; turn < 2; turn++) {
        const uint8_t *at = cells + (c + 4 * turn) * LK_TILE;
        __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i x = four_bytes(q + i * step + c + 4 * turn);
            sum.of[i][2 * turn] = dpbusd(sum.of[i][2 * turn], a, x);
            sum.of[i][2 * turn + 1] = dpbusd(sum.of[i][2 * turn + 1], b, x);
        }
    }
    return sum;
}

/* Queries of two planes, [n][2][pad]. */
LK_ALWAYS_INLINE struct sums dot_k_fine(const uint8_t *cells, int d_head, const int8_t *planes,
                                        int pad, int n) {
    struct sums high = dot_k(no_sums(), cells, d_head, planes, 2 * pad, n);
    return dot_k(as_high(high), cells, d_head, planes + pad, 2 * pad, n);
}

struct tokens {
    __m512i first, last; /* 0..15 and 16..31 */
};

/* Sums of groups 0 and 1. */
LK_ALWAYS_INLINE struct tokens order_tokens(__m512i a, __m512i b, enum lk_avx512_order order) {
    if (order == LK_OCTETS_01_23) return (struct tokens){a, b};
    return (struct tokens){_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)};
}

LK_ALWAYS_INLINE struct tokens in_order(const __m512i sum[4], enum lk_avx512_order order) {
    return order_tokens(_mm512_add_epi32(sum[0], sum[2]), _mm512_add_epi32(sum[1], sum[3]), order);
}

/* One plane of weights over the tile's tokens, for `groups` groups of 16 channels that begin at cells.
 * byte: [n] rows as in struct lk_avx512_weights */
LK_ALWAYS_INLINE struct sums dot_v(struct sums sum, const uint8_t *cells, const uint8_t *byte,
                                   int high, int n, int groups) {
    for (int half = 0; half < 2; half++) LK_UNROLL
    for (int k = 0; k < 4; k++) {
        int quad = 4 * half + k;
        __m512i x[LK_AVX512_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++)
            x[i] = four_bytes(byte + lk_avx512_quad(quad, high) + i * 2 * LK_TILE);
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            __m512i level = _mm512_load_si512(cells + g * LK_AVX512_ROWS * LK_TILE + quad * 64);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum.of[i][g] = dpbusd(sum.of[i][g], x[i], level);
        }
    }
    return sum;
}

/* acc [][d] += offset + step times sums, for channels from c on of queries [i0, i0 + n). */
LK_ALWAYS_INLINE void add_groups(const uint8_t *cells, const struct lk_avx512_weights *p, bool fine,
                                 const float *offset, int i0, int n, int groups, int c, int d,
                                 float *acc) {
    struct sums sum = dot_v(no_sums(), cells + c * LK_TILE, p->byte[i0], 1, n, groups);
    if (fine) sum = dot_v(as_high(sum), cells + c * LK_TILE, p->byte[i0], 0, n, groups);
    __mmask16 last = d - c >= groups * LK_AVX512_ROWS ? 0xffff : 0x00ff;
    LK_UNROLL
    for (int g = 0; g < groups; g++) LK_UNROLL
    for (int i = 0; i < n; i++) {
        float *out = acc + (size_t)(i0 + i) * d + c + g * LK_AVX512_ROWS;
        __mmask16 inside = g == groups - 1 ? last : 0xffff;
        __m512 x = _mm512_maskz_loadu_ps(inside, out);
        if (offset) x = _mm512_add_ps(x, _mm512_set1_ps(offset[i0 + i]));
        x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum.of[i][g]), _mm512_set1_ps(p->step[i0 + i]), x);
        _mm512_mask_storeu_ps(out, inside, x);
    }
}

/* The same for channels [c, end). */
LK_ALWAYS_INLINE void add_channels(const uint8_t *cells, const struct lk_avx512_weights *p,
                                   bool fine, const float *offset, int i0, int n, int c, int end,
                                   int d, float *acc) {
    for (; c + 64 <= end; c += 64) add_groups(cells, p, fine, offset, i0, n, 4, c, d, acc);
    for (; c + 32 <= end; c += 32) add_groups(cells, p, fine, offset, i0, n, 2, c, d, acc);
    for (; c < end; c += 16) add_groups(cells, p, fine, offset, i0, n, 1, c, d, acc);
}

/* The same for all of n queries. */
LK_ALWAYS_INLINE void add_queries(const uint8_t *cells, const struct lk_avx512_weights *p,
                                  bool fine, const float *offset, int n, int c, int end, int d,
                                  float *acc) {
    int i = 0;
    for (; i + 4 <= n; i += 4) add_channels(cells, p, fine, offset, i, 4, c, end, d, acc);
    if (n - i == 3) add_channels(cells, p, fine, offset, i, 3, c, end, d, acc);
    if (n - i == 2) add_channels(cells, p, fine, offset, i, 2, c, end, d, acc);
    if (n - i == 1) add_channels(cells, p, fine, offset, i, 1, c, end, d, acc);
}

#endif
