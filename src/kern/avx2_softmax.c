#include <immintrin.h>
#include <math.h>

#include "kern/avx2.h"

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

/* exp(x) for x <= 88: 2^k * exp(r), |r| <= ln 2 / 2, by the polynomial of Cephes' expf. Results below
 * the least normal float become 0. */
static inline __m256 exp8(__m256 x) {
    const __m256 least = _mm256_set1_ps(-87.3f), most = _mm256_set1_ps(88.0f);
    __m256 counts = _mm256_cmp_ps(x, least, _CMP_GT_OQ);
    x = _mm256_min_ps(_mm256_max_ps(x, least), most);
    __m256 k = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0.5f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(power)), counts);
}

float lk_avx2_exp_sum(float *s, int n, float scale, float max) {
    const __m256 factor = _mm256_set1_ps(scale), most = _mm256_set1_ps(max);
    __m256 sum = _mm256_setzero_ps();
    int t = 0;
    for (; t + 8 <= n; t += 8) {
        __m256 y = exp8(_mm256_fmsub_ps(_mm256_loadu_ps(s + t), factor, most));
        _mm256_storeu_ps(s + t, y);
        sum = _mm256_add_ps(sum, y);
    }
    __m256i rest = first_lanes(n - t);
    __m256 y = exp8(_mm256_fmsub_ps(_mm256_maskload_ps(s + t, rest), factor, most));
    _mm256_maskstore_ps(s + t, rest, y);
    sum = _mm256_add_ps(sum, _mm256_and_ps(y, _mm256_castsi256_ps(rest)));
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}
