/* Half floats as packed blocks hold them. Finite values stay finite: they saturate at the largest half. */
#ifndef LK_CODEC_HALF_H
#define LK_CODEC_HALF_H

#include <ggml.h>
#include <stdint.h>

#define LK_HALF_MAX 65504.0f

static inline uint16_t lk_half(float x) {
    if (x > LK_HALF_MAX) x = LK_HALF_MAX;
    if (x < -LK_HALF_MAX) x = -LK_HALF_MAX;
    return ggml_fp32_to_fp16(x);
}

static inline float lk_unhalf(uint16_t h) { return ggml_fp16_to_fp32(h); }

#endif
