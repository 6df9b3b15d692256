/* Vectors of eight 32-bit lanes by gcc's and clang's vector extensions. Code written with them once
 * becomes one AVX2 instruction or two NEON instructions per operation. Include this only in files
 * that are compiled for AVX2 or NEON. */
#ifndef LK_KERNELS_VEC8_H
#define LK_KERNELS_VEC8_H

#include "kernels/inline.h"

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { LK_LANES = 8 };

typedef float lk_f32x8 __attribute__((vector_size(32)));
typedef int32_t lk_i32x8 __attribute__((vector_size(32))); /* also a mask: 0 or -1 per lane */
typedef uint32_t lk_u32x8 __attribute__((vector_size(32)));
typedef uint8_t lk_u8x16 __attribute__((vector_size(16)));

LK_ALWAYS_INLINE lk_f32x8 lk_load_f32x8(const float *x) {
    lk_f32x8 v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Eight f16 values as floats. */
LK_ALWAYS_INLINE lk_f32x8 lk_load_f16x8(const uint16_t *x) {
#if defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
#else
    typedef __fp16 half8 __attribute__((vector_size(16)));
    half8 v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, lk_f32x8);
#endif
}

/* Eight floats as f16, rounded to the nearest. */
LK_ALWAYS_INLINE void lk_store_f16x8(uint16_t *x, lk_f32x8 v) {
#if defined(__AVX2__)
    _mm_storeu_si128((__m128i *)x, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    typedef __fp16 half8 __attribute__((vector_size(16)));
    half8 half = __builtin_convertvector(v, half8);
    memcpy(x, &half, sizeof half);
#endif
}

LK_ALWAYS_INLINE float lk_load_f16(const uint16_t *x) {
#if defined(__AVX2__)
    return _cvtsh_ss(*x);
#else
    __fp16 v;
    memcpy(&v, x, sizeof v);
    return (float)v;
#endif
}

LK_ALWAYS_INLINE void lk_store_f32x8(float *x, lk_f32x8 v) { memcpy(x, &v, sizeof v); }

LK_ALWAYS_INLINE lk_f32x8 lk_set1_f32x8(float x) { return (lk_f32x8){x, x, x, x, x, x, x, x}; }

/* mask: lanes of a where the mask is set, else 0. select: lanes of a where it is set, else of b. */
LK_ALWAYS_INLINE lk_f32x8 lk_mask_f32x8(lk_i32x8 mask, lk_f32x8 a) {
    return (lk_f32x8)((lk_i32x8)a & mask);
}
LK_ALWAYS_INLINE lk_f32x8 lk_select_f32x8(lk_i32x8 mask, lk_f32x8 a, lk_f32x8 b) {
    return (lk_f32x8)(((lk_i32x8)a & mask) | ((lk_i32x8)b & ~mask));
}

LK_ALWAYS_INLINE lk_f32x8 lk_abs_f32x8(lk_f32x8 v) { return (lk_f32x8)((lk_i32x8)v & 0x7fffffff); }

LK_ALWAYS_INLINE lk_f32x8 lk_min_f32x8(lk_f32x8 a, lk_f32x8 b) {
#if defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return lk_select_f32x8(a < b, a, b);
#endif
}

LK_ALWAYS_INLINE lk_f32x8 lk_max_f32x8(lk_f32x8 a, lk_f32x8 b) {
#if defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return lk_select_f32x8(a > b, a, b);
#endif
}

/* Rounds toward zero; magnitudes must be below 2^31. */
LK_ALWAYS_INLINE lk_i32x8 lk_f32x8_to_i32x8(lk_f32x8 v) {
    return __builtin_convertvector(v, lk_i32x8);
}
LK_ALWAYS_INLINE lk_f32x8 lk_i32x8_to_f32x8(lk_i32x8 v) {
    return __builtin_convertvector(v, lk_f32x8);
}

LK_ALWAYS_INLINE lk_f32x8 lk_sqrt_f32x8(lk_f32x8 v) {
#if defined(__AVX2__)
    return _mm256_sqrt_ps(v);
#else
    for (int i = 0; i < LK_LANES; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

/* Same as lk_clamp_finite and lk_round_half_away of codec/ops.h, per lane. */
LK_ALWAYS_INLINE lk_f32x8 lk_clamp_f32x8(lk_f32x8 v) {
    v = lk_mask_f32x8(v == v, v);
    return lk_max_f32x8(lk_min_f32x8(v, lk_set1_f32x8(1e9f)), lk_set1_f32x8(-1e9f));
}

LK_ALWAYS_INLINE lk_i32x8 lk_round_f32x8(lk_f32x8 v) {
    lk_f32x8 half = (lk_f32x8)(((lk_i32x8)v & INT32_MIN) | (lk_i32x8)lk_set1_f32x8(0.5f));
    return lk_f32x8_to_i32x8(v + half);
}

LK_ALWAYS_INLINE float lk_hmax_f32x8(lk_f32x8 v) {
    float max = v[0];
    for (int i = 1; i < LK_LANES; i++) max = v[i] > max ? v[i] : max;
    return max;
}

LK_ALWAYS_INLINE float lk_hsum_f32x8(lk_f32x8 v) {
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    return v[0] + v[1];
}

/* ---- the exponential of softmax and GELU ----
 *
 * exp(x) = 2^(x log2 e), and 2^x = 2^k 2^r with k an integer and |r| <= 1/2. */

static const float lk_log2e = 1.44269504f;

/* For x <= this, 2^x is not a normal float and becomes 0. */
static const float lk_exp2_min = -126.0f;

/* 2^r ~ sum of lk_exp2[i] r^i: degree 5, exact at 0, maximum relative error 1.1e-7. */
static const float lk_exp2[6] = {
    1.0f, 6.931469776e-01f, 2.402224209e-01f, 5.550733743e-02f, 9.671512640e-03f, 1.326472720e-03f};

/* ---- transposing ---- */

/* Transpose eight rows in place. */
LK_ALWAYS_INLINE void lk_transpose_f32x8(lk_f32x8 r[LK_LANES]) {
    lk_f32x8 a[8], b[8];
    LK_UNROLL8
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    LK_UNROLL8
    for (int i = 0; i < 8; i += 4) LK_UNROLL8
    for (int j = 0; j < 2; j++) {
        b[i + j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + j + 2] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    LK_UNROLL8
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

#endif
