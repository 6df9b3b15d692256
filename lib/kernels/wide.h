/* Eight lanes as gcc and clang have them on every machine: what is written with them once becomes one
 * AVX2 instruction or two of NEON. Only files that are compiled for such instructions include this. */
#ifndef LK_KERNELS_WIDE_H
#define LK_KERNELS_WIDE_H

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

#define LK_ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define LK_WIDE_LOOP _Pragma("clang loop unroll(full)")
#else
#define LK_WIDE_LOOP _Pragma("GCC unroll 8")
#endif

LK_ALWAYS_INLINE lk_f32x8 lk_load8(const float *x) {
    lk_f32x8 v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Half floats as floats. */
LK_ALWAYS_INLINE lk_f32x8 lk_load_halves8(const uint16_t *x) {
#if defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
#else
    typedef __fp16 half8 __attribute__((vector_size(16)));
    half8 v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, lk_f32x8);
#endif
}

LK_ALWAYS_INLINE float lk_load_half(const uint16_t *x) {
#if defined(__AVX2__)
    return _cvtsh_ss(*x);
#else
    __fp16 v;
    memcpy(&v, x, sizeof v);
    return (float)v;
#endif
}

LK_ALWAYS_INLINE void lk_store8(float *x, lk_f32x8 v) { memcpy(x, &v, sizeof v); }

LK_ALWAYS_INLINE lk_f32x8 lk_all8(float x) { return (lk_f32x8){x, x, x, x, x, x, x, x}; }

/* a where the mask is set, 0 elsewhere; a where it is set, else b. */
LK_ALWAYS_INLINE lk_f32x8 lk_where8(lk_i32x8 mask, lk_f32x8 a) {
    return (lk_f32x8)((lk_i32x8)a & mask);
}
LK_ALWAYS_INLINE lk_f32x8 lk_select8(lk_i32x8 mask, lk_f32x8 a, lk_f32x8 b) {
    return (lk_f32x8)(((lk_i32x8)a & mask) | ((lk_i32x8)b & ~mask));
}

LK_ALWAYS_INLINE lk_f32x8 lk_abs8(lk_f32x8 v) { return (lk_f32x8)((lk_i32x8)v & 0x7fffffff); }

LK_ALWAYS_INLINE lk_f32x8 lk_min8(lk_f32x8 a, lk_f32x8 b) {
#if defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return lk_select8(a < b, a, b);
#endif
}

LK_ALWAYS_INLINE lk_f32x8 lk_max8(lk_f32x8 a, lk_f32x8 b) {
#if defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return lk_select8(a > b, a, b);
#endif
}

/* Truncated, for magnitudes below 2^31; and back. */
LK_ALWAYS_INLINE lk_i32x8 lk_to_int8(lk_f32x8 v) { return __builtin_convertvector(v, lk_i32x8); }
LK_ALWAYS_INLINE lk_f32x8 lk_to_float8(lk_i32x8 v) { return __builtin_convertvector(v, lk_f32x8); }

LK_ALWAYS_INLINE lk_f32x8 lk_root8(lk_f32x8 v) {
#if defined(__AVX2__)
    return _mm256_sqrt_ps(v);
#else
    for (int i = 0; i < LK_LANES; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

/* As lk_tame and lk_nearest of codec/ops.h. */
LK_ALWAYS_INLINE lk_f32x8 lk_tame8(lk_f32x8 v) {
    v = lk_where8(v == v, v);
    return lk_max8(lk_min8(v, lk_all8(1e9f)), lk_all8(-1e9f));
}

LK_ALWAYS_INLINE lk_i32x8 lk_nearest8(lk_f32x8 v) {
    lk_f32x8 half = (lk_f32x8)(((lk_i32x8)v & INT32_MIN) | (lk_i32x8)lk_all8(0.5f));
    return lk_to_int8(v + half);
}

LK_ALWAYS_INLINE float lk_most8(lk_f32x8 v) {
    float most = v[0];
    for (int i = 1; i < LK_LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}

/* Rows become columns. */
LK_ALWAYS_INLINE void lk_transpose8(lk_f32x8 r[LK_LANES]) {
    lk_f32x8 a[8], b[8];
    LK_WIDE_LOOP
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    LK_WIDE_LOOP
    for (int i = 0; i < 8; i += 4) LK_WIDE_LOOP
    for (int j = 0; j < 2; j++) {
        b[i + j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + j + 2] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    LK_WIDE_LOOP
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

#endif
