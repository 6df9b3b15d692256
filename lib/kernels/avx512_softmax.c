#include "kernels/avx512.h"
#include "kernels/exp2.h"

#include <math.h>

/* Lanes below n. */
static inline __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }

float lk_avx512_max(const float *s, int n) {
    __m512 most = _mm512_set1_ps(-INFINITY),
           other[4] = {most, most, most, most}; /* one alone would wait for itself */
    int t = 0;
    for (; t + 64 <= n; t += 64) LK_UNROLL
    for (int i = 0; i < 4; i++) other[i] = _mm512_max_ps(other[i], _mm512_loadu_ps(s + t + 16 * i));
    most = _mm512_max_ps(_mm512_max_ps(other[0], other[1]), _mm512_max_ps(other[2], other[3]));
    for (; t + 16 <= n; t += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + t));
    __mmask16 rest = first_lanes(n - t);
    most = _mm512_mask_max_ps(most, rest, most, _mm512_maskz_loadu_ps(rest, s + t));
    return _mm512_reduce_max_ps(most);
}

/* 2^x for x up to 127. */
static inline __m512 exp2_16(__m512 x) {
    __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lk_exp2_min), _CMP_GT_OQ);
    __m512 k = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           r = _mm512_sub_ps(x, k);
    __m512 y = _mm512_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(lk_exp2[i]));
    return _mm512_maskz_scalef_ps(counts, y, k);
}

float lk_avx512_exp_sum(float *s, int n, float scale, float max) {
    const __m512 factor = _mm512_set1_ps(scale * lk_log2e), most = _mm512_set1_ps(max * lk_log2e);
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
