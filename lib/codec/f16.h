/* Half precision: conversion between f32 and f16 (IEEE), as packed blocks store it, and the codec
 * f16, for sinks, windows and the uncompressed cache.
 *
 * Rounds to nearest, ties to even. Subnormals are exact. A NaN keeps its sign and the upper ten
 * bits of its payload, and becomes quiet. All three implementations below give the same bits:
 *   - F16C instructions, in files compiled for them (the x86 kernels);
 *   - the __fp16 type of AArch64;
 *   - plain C everywhere else.
 *
 * The codec stores rows one after another:
 *
 *   head: | row 0: f16 [d_head] | row 1 | ... | row block_rows - 1 | padding to 32 bytes |
 *
 * Row-wise, with any number of rows per block. Values beyond the largest f16 saturate. */
#ifndef LK_CODEC_F16_H
#define LK_CODEC_F16_H

#include "codec/ops.h"

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

extern const struct lk_coding_ops lk_f16_ops;

static inline const uint16_t *lk_f16_row(const void *head, int d_head, int row) {
    return (const uint16_t *)head + (size_t)row * d_head;
}

#define LK_F16_MAX 65504.0f

static inline float lk_f16_to_f32_portable(uint16_t h) {
    const uint32_t exponent_mask = 0x7c00u << 13;
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, exponent = bits & exponent_mask;
    bits += (127u - 15) << 23; /* the exponent biases of f32 and f16 */
    if (exponent == exponent_mask) {
        bits += (128u - 16) << 23;                 /* Inf or NaN */
        if (bits & 0x007fffff) bits |= 0x00400000; /* quiet */
    } else if (exponent == 0) {                    /* zero or subnormal: let the FPU normalize it */
        float x;
        bits += 1u << 23;
        memcpy(&x, &bits, sizeof x);
        x -= 0x1p-14f;
        memcpy(&bits, &x, sizeof bits);
    }
    bits |= (uint32_t)(h & 0x8000) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Values that round to more than LK_F16_MAX become infinite. */
static inline uint16_t lk_f32_to_f16_portable(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits & 0x80000000u;
    bits ^= sign;
    if (bits > 0x7f800000) { /* NaN: quiet, with the upper bits of its payload */
        bits = 0x7e00 | (bits >> 13 & 0x03ff);
    } else if (bits >= 0x47800000) { /* at least 2^16 */
        bits = 0x7c00;
    } else if (bits < 0x38800000) {
        /* Less than 2^-14, a subnormal of f16. The last bit of 0.5 + |x| weighs 2^-24, as that of a
         * subnormal does, so the addition rounds. */
        float sum;
        memcpy(&sum, &bits, sizeof sum);
        sum += 0.5f;
        memcpy(&bits, &sum, sizeof bits);
        bits -= 0x3f000000;
    } else {
        uint32_t odd = bits >> 13 & 1; /* of the result's last bit: ties to even */
        bits = (bits - ((127u - 15) << 23) + 0x0fff + odd) >> 13;
    }
    return (uint16_t)(bits | sign >> 16);
}

#if defined(__F16C__)
static inline float lk_f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t lk_f32_to_f16_ieee(float x) {
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__aarch64__)
static inline float lk_f16_to_f32(uint16_t h) {
    __fp16 half;
    memcpy(&half, &h, sizeof half);
    return half;
}
static inline uint16_t lk_f32_to_f16_ieee(float x) {
    __fp16 half = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
#else
static inline float lk_f16_to_f32(uint16_t h) { return lk_f16_to_f32_portable(h); }
static inline uint16_t lk_f32_to_f16_ieee(float x) { return lk_f32_to_f16_portable(x); }
#endif

/* The nearest f16, saturated: finite and infinite values beyond +-LK_F16_MAX become
 * +-LK_F16_MAX. */
static inline uint16_t lk_f32_to_f16(float x) {
    if (x > LK_F16_MAX) x = LK_F16_MAX;
    if (x < -LK_F16_MAX) x = -LK_F16_MAX;
    return lk_f32_to_f16_ieee(x);
}

#endif
