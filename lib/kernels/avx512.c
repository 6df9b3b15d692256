/* Tables of the AVX-512, AVX512-VBMI and AMX kernels, and softmax. */
#include "kernels/avx512_dot.h"
#include "kernels/vec8.h"

#include <math.h>

/* ---- softmax ---- */

/* Mask of the lanes below n. */
static inline __mmask16 lane_mask(int n) { return (__mmask16)((1u << n) - 1); }

static float max_f32(const float *s, int n) {
    /* Four maxima, because with one each instruction would wait for the previous one. */
    __m512 max = _mm512_set1_ps(-INFINITY), part[4] = {max, max, max, max};
    int t = 0;
    for (; t + 64 <= n; t += 64) LK_UNROLL
    for (int i = 0; i < 4; i++) part[i] = _mm512_max_ps(part[i], _mm512_loadu_ps(s + t + 16 * i));
    max = _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3]));
    for (; t + 16 <= n; t += 16) max = _mm512_max_ps(max, _mm512_loadu_ps(s + t));
    __mmask16 rest = lane_mask(n - t);
    max = _mm512_mask_max_ps(max, rest, max, _mm512_maskz_loadu_ps(rest, s + t));
    return _mm512_reduce_max_ps(max);
}

/* 2^x for x up to 127. */
static inline __m512 exp2_f32x16(__m512 x) {
    __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lk_exp2_min), _CMP_GT_OQ);
    __m512 k = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           r = _mm512_sub_ps(x, k);
    __m512 y = _mm512_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(lk_exp2[i]));
    return _mm512_maskz_scalef_ps(counts, y, k);
}

static float exp_sum(float *s, int n, float scale, float max) {
    const __m512 factor = _mm512_set1_ps(scale * lk_log2e), shift = _mm512_set1_ps(max * lk_log2e);
    __m512 sum = _mm512_setzero_ps();
    int t = 0;
    for (; t + 16 <= n; t += 16) {
        __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_loadu_ps(s + t), factor, shift));
        _mm512_storeu_ps(s + t, y);
        sum = _mm512_add_ps(sum, y);
    }
    __mmask16 rest = lane_mask(n - t);
    __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_maskz_loadu_ps(rest, s + t), factor, shift));
    _mm512_mask_storeu_ps(s + t, rest, y);
    return _mm512_reduce_add_ps(_mm512_mask_add_ps(sum, rest, sum, y));
}

/* ---- tables ---- */

/* The same kernels for few and for many queries, and two kernels of rot. */
#define BOTH(codec)                                                                                \
    {                                                                                              \
        lk_avx512_##codec##_score, lk_avx512_##codec##_score, lk_avx512_##codec##_accumulate,      \
            lk_avx512_##codec##_accumulate                                                         \
    }
#define FEW_MANY(few, many)                                                                        \
    {                                                                                              \
        lk_avx512##few##_score, lk_avx512_##many##_score, lk_avx512##few##_accumulate,             \
            lk_avx512_##many##_accumulate                                                          \
    }

#define SHARED_KERNELS                                                                             \
    .max_bits_q8 = LK_AVX512_MAX_BITS_Q8, .max = max_f32, .exp_sum = exp_sum,                      \
    .combine_queries = lk_avx512_combine_queries, LK_X86_KERNELS

const struct lk_kernels lk_kernels_avx512 = {.name = "avx512",
                                             .coding = {[LK_F16] = BOTH(f16),
                                                        [LK_INT8] = BOTH(per_token),
                                                        [LK_KIVI] = BOTH(kivi),
                                                        [LK_ROT] = FEW_MANY(_decode, per_token),
                                                        LK_COMPOSED_CODINGS},
                                             .few = LK_AVX512_DECODE_QUERIES,
                                             .unpack = &lk_avx512_unpack,
                                             SHARED_KERNELS};

const struct lk_kernels lk_kernels_avx512vbmi = {
    .name = "avx512vbmi",
    .coding = {[LK_F16] = BOTH(f16),
               [LK_INT8] = BOTH(per_token),
               [LK_KIVI] = BOTH(kivi),
               [LK_ROT] = FEW_MANY(vbmi_decode, per_token),
               LK_COMPOSED_CODINGS},
    .few = LK_AVX512_DECODE_QUERIES,
    .unpack = &lk_avx512vbmi_unpack,
    SHARED_KERNELS};

/* AMX pays only if enough queries fill its registers of 16 rows. */
const struct lk_kernels lk_kernels_amx = {.name = "amx",
                                          .enter = lk_avx512_amx_enter,
                                          .leave = lk_avx512_amx_leave,
                                          .coding = {[LK_F16] = BOTH(f16),
                                                     [LK_INT8] = FEW_MANY(_per_token, amx),
                                                     [LK_KIVI] = BOTH(kivi),
                                                     [LK_ROT] = FEW_MANY(vbmi_decode, amx),
                                                     LK_COMPOSED_CODINGS},
                                          .few = LK_AVX512_QUERIES,
                                          .unpack = &lk_avx512vbmi_unpack,
                                          SHARED_KERNELS};
