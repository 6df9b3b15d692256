/* Half floats as packed blocks hold them. Finite values stay finite: they saturate at the largest half. */
#ifndef LK_CODEC_HALF_H
#define LK_CODEC_HALF_H

#include <stdint.h>
#include <string.h>

#define LK_HALF_MAX 65504.0f

#if defined(__aarch64__) /* its compilers have the type and its CPUs the instructions */
static inline uint16_t lk_half_bits(float x) {
    __fp16 half = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

static inline float lk_unhalf(uint16_t h) {
    __fp16 half;
    memcpy(&half, &h, sizeof half);
    return half;
}
#else
#include <ggml.h>

static inline uint16_t lk_half_bits(float x) { return ggml_fp32_to_fp16(x); }
static inline float lk_unhalf(uint16_t h) { return ggml_fp16_to_fp32(h); }
#endif

static inline uint16_t lk_half(float x) {
    if (x > LK_HALF_MAX) x = LK_HALF_MAX;
    if (x < -LK_HALF_MAX) x = -LK_HALF_MAX;
    return lk_half_bits(x);
}

#endif
