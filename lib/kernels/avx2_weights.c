#include "kernels/avx2_weights.h"

static float largest(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

float lk_avx2_weigh(const float *p, const float *scale, int16_t *p16, int32_t *sum) {
    __m256 weight[4], most = _mm256_setzero_ps();
    for (int j = 0; j < 4; j++) {
        weight[j] = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * j), _mm256_loadu_ps(scale + 8 * j));
        most = _mm256_max_ps(most, weight[j]);
    }
    const float least =
        1e-30f; /* below it there is nothing to add, and its inverse would overflow */
    float step = largest(most) / LK_MAX_X16;
    __m256 inverse = _mm256_set1_ps(step > least ? 1 / step : 0);
    __m256i sum32 = _mm256_setzero_si256();
    for (int j = 0; j < 4; j += 2) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(weight[j], inverse));
        __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(weight[j + 1], inverse));
        __m256i both =
            _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); /* packs works in halves */
        _mm256_storeu_si256((__m256i *)(p16 + 8 * j), both);
        sum32 = _mm256_add_epi32(sum32, _mm256_add_epi32(a, b));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum32), _mm256_extracti128_si256(sum32, 1));
    four = _mm_hadd_epi32(four, four);
    *sum = _mm_cvtsi128_si32(_mm_hadd_epi32(four, four));
    return step;
}

float lk_avx2_dot(const float *a, const float *b, int n) {
    __m256 sum = _mm256_setzero_ps();
    for (int c = 0; c < n; c += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + c), _mm256_loadu_ps(b + c), sum);
    return total(sum);
}
