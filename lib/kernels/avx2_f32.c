/* Kernels on plain floats for AVX2: softmax, scores with RoPE, GELU layers and offsets of
 * weights. */
#include "kernels/avx2.h"
#include "kernels/avx2_vec.h"
#include "kernels/vec8_f32.h"

#include <immintrin.h>
#include <math.h>

/* Mask of the lanes below n. */
static __m256i lane_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

float lk_avx2_max(const float *s, int n) {
    __m256 max = _mm256_set1_ps(-INFINITY);
    int t = 0;
    for (; t + 8 <= n; t += 8) max = _mm256_max_ps(max, _mm256_loadu_ps(s + t));
    __m256i rest = lane_mask(n - t);
    __m256 tail = _mm256_maskload_ps(s + t, rest);
    max = _mm256_max_ps(max, _mm256_blendv_ps(max, tail, _mm256_castsi256_ps(rest)));
    return hmax_f32x8(max);
}

/* 2^x for x up to 127. Adding `whole` rounds x to an integer k and leaves k + 127 in the lowest
 * bits of the sum. Shifted into a float's exponent they are 2^k, or 0 if k is -127. */
static inline __m256 exp2_f32x8(__m256 x) {
    const __m256 whole = _mm256_set1_ps(0x1.8p23f + 127);
    x = _mm256_max_ps(x, _mm256_set1_ps(lk_exp2_min - 1));
    __m256 sum = _mm256_add_ps(x, whole), r = _mm256_sub_ps(x, _mm256_sub_ps(sum, whole));
    __m256 y = _mm256_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(lk_exp2[i]));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum), 23)));
}

/* Sums over the lanes of eight vectors. */
static inline __m256 lane_sums(const __m256 *x) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3])),
           b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Maxima over the lanes of eight vectors. */
static inline __m256 lane_maxima(const __m256 *x) {
    __m256 pair[4], four[2];
    LK_UNROLL
    for (int i = 0; i < 4; i++)
        pair[i] = _mm256_max_ps(_mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0x44),
                                _mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0xee));
    LK_UNROLL
    for (int i = 0; i < 2; i++)
        four[i] = _mm256_max_ps(_mm256_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x88),
                                _mm256_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xdd));
    return _mm256_max_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

float lk_avx2_exp_sum(float *s, int n, float scale, float max) {
    const __m256 factor = _mm256_set1_ps(scale * lk_log2e), shift = _mm256_set1_ps(max * lk_log2e);
    __m256 sum = _mm256_setzero_ps();
    int t = 0;
    for (; t + 8 <= n; t += 8) {
        __m256 y = exp2_f32x8(_mm256_fmsub_ps(_mm256_loadu_ps(s + t), factor, shift));
        _mm256_storeu_ps(s + t, y);
        sum = _mm256_add_ps(sum, y);
    }
    __m256i rest = lane_mask(n - t);
    __m256 y = exp2_f32x8(_mm256_fmsub_ps(_mm256_maskload_ps(s + t, rest), factor, shift));
    _mm256_maskstore_ps(s + t, rest, y);
    sum = _mm256_add_ps(sum, _mm256_and_ps(y, _mm256_castsi256_ps(rest)));
    return hsum_f32x8(sum);
}

void lk_avx2_score_rope(const struct lk_rope_keys *keys, const float *q, size_t q_stride, int n_q,
                        float *s, size_t stride) {
    lk_vec8_score_rope(keys, q, q_stride, n_q, s, stride);
}

void lk_avx2_combine_queries(const struct lk_queries *x, const float *w, int n,
                             const struct lk_queries *out) {
    lk_vec8_combine_queries(x, w, n, out);
}

void lk_avx2_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    lk_vec8_gelu_layer(x, w, n_in, n_out, y);
}

void lk_avx2_delta_step(const float *from, float *to, int d, const float *q, const float *k,
                        const float *v, float decay, float beta, float *out) {
    lk_vec8_delta_step(from, to, d, q, k, v, decay, beta, out);
}

void lk_avx2_scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out) {
    lk_vec8_scan_step(from, to, n, d, q, k, v, decay, beta, out);
}

void lk_avx2_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y) {
    lk_vec8_add_offsets(x, n_tok, n_in, offset, n_out, first, n, y);
}
