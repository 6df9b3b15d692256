/* Integer dot products of unpacked groups with up to four operands, and what goes with them:
 * scales, quantized weights. n and groups are constants after inlining, so that loops unroll and
 * sums stay in registers. VPDPBUSD has a latency of five cycles and two start per cycle, so ten
 * independent sums keep it busy. */
#ifndef LK_KERNELS_AVX512_DOT_H
#define LK_KERNELS_AVX512_DOT_H

#include "kernels/avx512.h"

#include <string.h>

/* sum + products, in place. In assembly, because gcc would copy the sums around the loop. */
LK_ALWAYS_INLINE __m512i dpbusd_i32x16(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* sum + the products of both pairs of 16-bit numbers, row by row. */
LK_ALWAYS_INLINE __m512i dpwssd_i32x16(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* The four bytes at p in every row. */
LK_ALWAYS_INLINE __m512i set1_i8x4_x16(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Sums of four queries, 16 rows each. K: [query][2 * turn + group], where even and odd quads of
 * channels have separate sums. V: [query][group]. */
struct query_sums {
    __m512i of[LK_AVX512_QUERIES][4];
};

LK_ALWAYS_INLINE struct query_sums zero_sums(void) {
    struct query_sums sum;
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) LK_UNROLL
    for (int k = 0; k < 4; k++) sum.of[i][k] = _mm512_setzero_si512();
    return sum;
}

/* Sums of high bytes, times 256, before sums of low bytes are added. */
LK_ALWAYS_INLINE struct query_sums shift_high_plane(struct query_sums sum) {
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) LK_UNROLL
    for (int k = 0; k < 4; k++) sum.of[i][k] = _mm512_slli_epi32(sum.of[i][k], 8);
    return sum;
}

/* q: [n] rows of bytes, `step` apart */
LK_ALWAYS_INLINE struct query_sums dot_k(struct query_sums sum, const uint8_t *cells, int d_head,
                                         const int8_t *q, size_t step, int n) {
    for (int c = 0; c < d_head; c += 8) LK_UNROLL
    for (int turn = 0; turn < 2; turn++) {
        const uint8_t *at = cells + (c + 4 * turn) * LK_TILE;
        __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i x = set1_i8x4_x16(q + i * step + c + 4 * turn);
            sum.of[i][2 * turn] = dpbusd_i32x16(sum.of[i][2 * turn], a, x);
            sum.of[i][2 * turn + 1] = dpbusd_i32x16(sum.of[i][2 * turn + 1], b, x);
        }
    }
    return sum;
}

/* Same as above, for 16-bit queries: planes [n][2][pad]. */
LK_ALWAYS_INLINE struct query_sums dot_k_fine(const uint8_t *cells, int d_head,
                                              const int8_t *planes, int pad, int n) {
    struct query_sums high = dot_k(zero_sums(), cells, d_head, planes, 2 * pad, n);
    return dot_k(shift_high_plane(high), cells, d_head, planes + pad, 2 * pad, n);
}

struct token_sums {
    __m512i first, last; /* tokens 0..15 and 16..31 */
};

/* a, b: sums of groups 0 and 1 */
LK_ALWAYS_INLINE struct token_sums order_tokens(__m512i a, __m512i b, enum lk_avx512_order order) {
    if (order == LK_OCTETS_01_23) return (struct token_sums){a, b};
    return (struct token_sums){_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)};
}

LK_ALWAYS_INLINE struct token_sums join_sums(const __m512i sum[4], enum lk_avx512_order order) {
    return order_tokens(_mm512_add_epi32(sum[0], sum[2]), _mm512_add_epi32(sum[1], sum[3]), order);
}

/* sum += one plane of weights times the tile's tokens, for `groups` groups of 16 channels from
 * `cells` on. byte: [n] rows as in struct lk_avx512_weights */
LK_ALWAYS_INLINE struct query_sums dot_v(struct query_sums sum, const uint8_t *cells,
                                         const uint8_t *byte, int high, int n, int groups) {
    for (int half = 0; half < 2; half++) LK_UNROLL
    for (int k = 0; k < 4; k++) {
        int quad = 4 * half + k;
        __m512i x[LK_AVX512_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++)
            x[i] = set1_i8x4_x16(byte + lk_avx512_quad(quad, high) + i * 2 * LK_TILE);
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            __m512i level = _mm512_load_si512(cells + g * LK_AVX512_ROWS * LK_TILE + quad * 64);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum.of[i][g] = dpbusd_i32x16(sum.of[i][g], x[i], level);
        }
    }
    return sum;
}

/* acc [n][d] += offset [n] + step * sums: a tile's unpacked cells, the weights of n queries, and
 * where the result goes. */
struct weighted_cells {
    const uint8_t *cells;
    const struct lk_avx512_weights *weights;
    bool fine;           /* 16 bits; a constant after inlining */
    const float *offset; /* [n]; NULL for 0 */
    int d;
    float *acc;
};

/* For `groups` groups of channels from c on, and queries [i0, i0 + n). */
LK_ALWAYS_INLINE void accumulate_groups(struct weighted_cells w, int i0, int n, int groups, int c) {
    const uint8_t *cells = w.cells + c * LK_TILE, *byte = w.weights->byte[i0];
    struct query_sums sum = dot_v(zero_sums(), cells, byte, 1, n, groups);
    if (w.fine) sum = dot_v(shift_high_plane(sum), cells, byte, 0, n, groups);
    __mmask16 last = w.d - c >= groups * LK_AVX512_ROWS ? 0xffff : 0x00ff;
    LK_UNROLL
    for (int g = 0; g < groups; g++) LK_UNROLL
    for (int i = 0; i < n; i++) {
        float *out = w.acc + (size_t)(i0 + i) * w.d + c + g * LK_AVX512_ROWS;
        __mmask16 inside = g == groups - 1 ? last : 0xffff;
        __m512 x = _mm512_maskz_loadu_ps(inside, out);
        if (w.offset) x = _mm512_add_ps(x, _mm512_set1_ps(w.offset[i0 + i]));
        x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum.of[i][g]),
                            _mm512_set1_ps(w.weights->step[i0 + i]), x);
        _mm512_mask_storeu_ps(out, inside, x);
    }
}

/* Same as above, for channels [c, end). */
LK_ALWAYS_INLINE void accumulate_channels(struct weighted_cells w, int i0, int n, int c, int end) {
    for (; c + 64 <= end; c += 64) accumulate_groups(w, i0, n, 4, c);
    for (; c + 32 <= end; c += 32) accumulate_groups(w, i0, n, 2, c);
    for (; c < end; c += 16) accumulate_groups(w, i0, n, 1, c);
}

/* Same as above, for all of n queries. */
LK_ALWAYS_INLINE void accumulate_queries(struct weighted_cells w, int n, int c, int end) {
    int i = 0;
    for (; i + 4 <= n; i += 4) accumulate_channels(w, i, 4, c, end);
    if (n - i == 3) accumulate_channels(w, i, 3, c, end);
    if (n - i == 2) accumulate_channels(w, i, 2, c, end);
    if (n - i == 1) accumulate_channels(w, i, 1, c, end);
}

/* ---- scales and weights ---- */

/* Sums of four vectors. */
LK_ALWAYS_INLINE __m128i lk_avx512_hsum_i32x16_x4(const __m512i v[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i c = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti32x8_epi32(a, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

/* Scales of a tile's rows without their signs, 0 from row n on. Returns the signs. */
LK_ALWAYS_INLINE __mmask32 lk_avx512_load_scales(const uint16_t *half, int n, __m512 out[2]) {
    __m512i bits = _mm512_loadu_si512(half);
    __m512i inside = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    inside = _mm512_maskz_mov_epi16((__mmask32)(((uint64_t)1 << n) - 1), inside);
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(inside));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(inside, 1));
    return _mm512_movepi16_mask(bits);
}

/* Maxima of four vectors. */
LK_ALWAYS_INLINE __m128 hmax_f32x16_x4(const __m512 v[4]) {
    __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    a = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44),
                      _mm512_shuffle_ps(a, b, 0xee)); /* 0 1 2 3 in each 128-bit lane */
    __m256 c = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* Added to the weights of 16 tokens (first: 0 or 1, the tile's half) before they are truncated to
 * integers: the bit-reversed number of the token, scaled to [0, 1). */
LK_ALWAYS_INLINE __m512 dither(int first) {
    const __m512 half = _mm512_setr_ps(0, 16, 8, 24, 4, 20, 12, 28, 2, 18, 10, 26, 6, 22, 14, 30);
    return _mm512_mul_ps(_mm512_add_ps(half, _mm512_set1_ps(first ? 1.5f : 0.5f)),
                         _mm512_set1_ps(1.0f / LK_TILE));
}

/* lk_avx512_quantize_weights for n <= LK_AVX512_QUERIES queries, a constant. byte: [n] rows, step:
 * [4] */
LK_ALWAYS_INLINE void lk_avx512_quantize_weights_of(const float *p, size_t stride, int n,
                                                    const __m512 scale[2], bool fine,
                                                    uint8_t (*byte)[2 * LK_TILE], float *step) {
    __m512 weight[LK_AVX512_QUERIES][2], max[LK_AVX512_QUERIES];
    float inverse[4], max_code = fine ? 65535 : 255;
    LK_UNROLL
    for (int i = 0; i < LK_AVX512_QUERIES; i++) {
        /* cppcheck-suppress arrayIndexOutOfBoundsCond ; n is at most LK_AVX512_QUERIES */
        max[i] = _mm512_setzero_ps();
        if (i >= n) continue;
        weight[i][0] = _mm512_mul_ps(_mm512_loadu_ps(p + i * stride), scale[0]);
        weight[i][1] = _mm512_mul_ps(_mm512_loadu_ps(p + i * stride + LK_AVX512_ROWS), scale[1]);
        max[i] = _mm512_max_ps(weight[i][0], weight[i][1]);
    }
    __m128 four = hmax_f32x16_x4(max), range = _mm_set1_ps(max_code);
    __mmask8 counts = _mm_cmp_ps_mask(four, _mm_set1_ps(LK_MIN_STEP * 65535), _CMP_GT_OQ);
    _mm_storeu_ps(step, _mm_mul_ps(four, _mm_set1_ps(1 / max_code)));
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
        /* Packing within 128-bit lanes makes the order of the bytes. */
        __m512i both = _mm512_packus_epi32(a, b);
        __m512i low = _mm512_and_si512(both, _mm512_set1_epi16(255));
        _mm512_store_si512(byte[i], _mm512_packus_epi16(_mm512_srli_epi16(both, 8), low));
    }
}

#endif
