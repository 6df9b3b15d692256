#include <math.h>

#include "kern/avx512.h"

/* Lanes below n. */
static inline __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }

float lk_avx512_max(const float *s, int n) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    int t = 0;
    for (; t + 16 <= n; t += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + t));
    __mmask16 rest = first_lanes(n - t);
    most = _mm512_mask_max_ps(most, rest, most, _mm512_maskz_loadu_ps(rest, s + t));
    return _mm512_reduce_max_ps(most);
}

/* 2^x: 2^k * 2^r with k whole and |r| <= 1/2, and 2^r by the polynomial of degree 5 whose largest relative
 * error there is 5e-7. Results below the least normal float become 0. */
static inline __m512 exp2_16(__m512 x) {
    __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
    __m512 k = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, k);
    __m512 y = _mm512_set1_ps(1.112550768e-03f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(9.666282525e-03f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.557400473e-02f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(2.402235065e-01f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(6.931428306e-01f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(counts, y, k);
}

float lk_avx512_exp_sum(float *s, int n, float scale, float max) {
    const float log2e = 1.44269504f;
    const __m512 factor = _mm512_set1_ps(scale * log2e), most = _mm512_set1_ps(max * log2e);
    __m512 sum = _mm512_setzero_ps();
    int t = 0;
    for (; t + 16 <= n; t += 16) {
        __m512 y = exp2_16(_mm512_fmsub_ps(_mm512_loadu_ps(s + t), factor, most));
        _mm512_storeu_ps(s + t, y);
        sum = _mm512_add_ps(sum, y);
    }
    __mmask16 rest = first_lanes(n - t);
    __m512 y = exp2_16(_mm512_fmsub_ps(_mm512_maskz_loadu_ps(rest, s + t), factor, most));
    _mm512_mask_storeu_ps(s + t, rest, y);
    return _mm512_reduce_add_ps(_mm512_mask_add_ps(sum, rest, sum, y));
}
