/* Tables of the AVX2 and AVX-VNNI kernels, and softmax. */
#include "kernels/avx2_vec.h"
#include "kernels/vec8.h"

#include <math.h>

/* ---- softmax ---- */

/* Mask of the lanes below n. */
static __m256i lane_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static float max_f32(const float *s, int n) {
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

static float exp_sum(float *s, int n, float scale, float max) {
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

/* ---- tables ---- */

/* The same kernels for few and for many queries. */
#define BOTH(codec)                                                                                \
    {                                                                                              \
        lk_avx2_##codec##_score, lk_avx2_##codec##_score, lk_avx2_##codec##_accumulate,            \
            lk_avx2_##codec##_accumulate                                                           \
    }

const struct lk_kernels lk_kernels_avx2 = {.name = "avx2",
                                           .chunk = 512,
                                           .coding = {[LK_F16] = BOTH(f16),
                                                      [LK_INT8] = BOTH(per_token),
                                                      [LK_KIVI] = BOTH(kivi),
                                                      [LK_ROT] = BOTH(rot),
                                                      LK_COMPOSED_CODINGS},
                                           .dots = &lk_avx2_dots,
                                           .max = max_f32,
                                           .exp_sum = exp_sum,
                                           .combine_queries = lk_vec8_combine_queries,
                                           .max_bits_q8 = LK_AVX2_MAX_BITS_Q8,
                                           LK_X86_KERNELS};

const struct lk_kernels lk_kernels_avxvnni = {.name = "avxvnni",
                                              .coding = {[LK_F16] = BOTH(f16),
                                                         [LK_INT8] = BOTH(per_token),
                                                         [LK_KIVI] = BOTH(kivi),
                                                         [LK_ROT] = BOTH(per_token),
                                                         LK_COMPOSED_CODINGS},
                                              .dots = &lk_avxvnni_dots,
                                              .max = max_f32,
                                              .exp_sum = exp_sum,
                                              .combine_queries = lk_vec8_combine_queries,
                                              .max_bits_q8 = LK_AVX2_MAX_BITS_Q8,
                                              LK_X86_KERNELS};
