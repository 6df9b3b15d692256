#include "kernels/avx2.h"
#include "kernels/exp2.h"

#include <immintrin.h>
#include <math.h>

/* Lanes below n. */
static __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

float lk_avx2_max(const float *s, int n) {
    __m256 most = _mm256_set1_ps(-INFINITY);
    int t = 0;
    for (; t + 8 <= n; t += 8) most = _mm256_max_ps(most, _mm256_loadu_ps(s + t));
    __m256i rest = first_lanes(n - t);
    __m256 tail = _mm256_maskload_ps(s + t, rest);
    most = _mm256_max_ps(most, _mm256_blendv_ps(most, tail, _mm256_castsi256_ps(rest)));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* 2^x for x up to 127. Added to `whole`, x is rounded to an integer k, and k + 127 are the lowest bits of the sum: as a
 * float's exponent they are 2^k, and 0 where k is -127. */
static inline __m256 exp2_8(__m256 x) {
    const __m256 whole = _mm256_set1_ps(0x1.8p23f + 127);
    x = _mm256_max_ps(x, _mm256_set1_ps(lk_exp2_min - 1));
    __m256 sum = _mm256_add_ps(x, whole), r = _mm256_sub_ps(x, _mm256_sub_ps(sum, whole));
    __m256 y = _mm256_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(lk_exp2[i]));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum), 23)));
}

float lk_avx2_exp_sum(float *s, int n, float scale, float max) {
    const __m256 factor = _mm256_set1_ps(scale * lk_log2e), most = _mm256_set1_ps(max * lk_log2e);
    __m256 sum = _mm256_setzero_ps();
    int t = 0;
    for (; t + 8 <= n; t += 8) {
        __m256 y = exp2_8(_mm256_fmsub_ps(_mm256_loadu_ps(s + t), factor, most));
        _mm256_storeu_ps(s + t, y);
        sum = _mm256_add_ps(sum, y);
    }
    __m256i rest = first_lanes(n - t);
    __m256 y = exp2_8(_mm256_fmsub_ps(_mm256_maskload_ps(s + t, rest), factor, most));
    _mm256_maskstore_ps(s + t, rest, y);
    sum = _mm256_add_ps(sum, _mm256_and_ps(y, _mm256_castsi256_ps(rest)));
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}
