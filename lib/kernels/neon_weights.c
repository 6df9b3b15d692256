#include "kernels/neon.h"

/* Eight 16-bit numbers as two planes: high rounds, so that low is what remains, between -128 and 127. */
LK_ALWAYS_INLINE void store_planes(int16x8_t x, int8_t *planes, int pad) {
    vst1_s8(planes, vrshrn_n_s16(x, 8));
    vst1_s8(planes + pad, vmovn_s16(x));
}

/* x[j] * scale[j] ~ step * (256 planes[j] + planes[pad + j]) for j < n; returns step, and the sum of these
 * 16-bit numbers. Where n is constant the products stay in registers. */
LK_ALWAYS_INLINE float fold(const float *x, const float *scale, int n, int8_t *planes, int pad,
                            int32_t *sum) {
    float32x4_t product[LK_MAX_D_HEAD / 4], most = vdupq_n_f32(0);
    LK_UNROLL
    for (int j = 0; j < n / 4; j++) {
        product[j] = vmulq_f32(vld1q_f32(x + 4 * j), vld1q_f32(scale + 4 * j));
        most = vmaxq_f32(most, vabsq_f32(product[j]));
    }
    const float least =
        1e-30f; /* below it there is nothing to add, and its inverse would overflow */
    float step = vmaxvq_f32(most) / LK_MAX_X16;
    float inverse = step > least ? 1 / step : 0;
    int32x4_t total = vdupq_n_s32(0);
    LK_UNROLL
    for (int j = 0; j < n / 4; j += 2) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(product[j], inverse));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(product[j + 1], inverse));
        store_planes(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b)), planes + 4 * j, pad);
        total = vaddq_s32(total, vaddq_s32(a, b));
    }
    *sum = vaddvq_s32(total);
    return step;
}

float lk_neon_weigh(const float *p, const float *scale, int8_t planes[2][LK_TILE], int32_t *sum) {
    return fold(p, scale, LK_TILE, planes[0], LK_TILE, sum);
}

float lk_neon_fold(const float *q, const float *scale, int d_head,
                   int8_t planes[2][LK_MAX_D_HEAD]) {
    int32_t sum;
    return fold(q, scale, d_head, planes[0], LK_MAX_D_HEAD, &sum);
}

LK_ALWAYS_INLINE float32x4_t load_half4(uint16x4_t x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(x));
}

void lk_neon_to_float(const uint16_t *half, int n, float *out) {
    for (int j = 0; j < n; j += 4) vst1q_f32(out + j, load_half4(vld1_u16(half + j)));
}

void lk_neon_scales(const uint16_t *half, int n, float *out) {
    static const uint32_t lane[4] = {0, 1, 2, 3};
    LK_UNROLL
    for (int t = 0; t < LK_TILE; t += 4) {
        float32x4_t x = load_half4(vand_u16(vld1_u16(half + t), vdup_n_u16(0x7fff)));
        uint32x4_t inside = vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)t)),
                                      vdupq_n_u32((uint32_t)n));
        vst1q_f32(out + t, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), inside)));
    }
}

float lk_neon_dot(const float *a, const float *b, int n) {
    float32x4_t low = vdupq_n_f32(0), high = low;
    for (int j = 0; j < n; j += 8) {
        low = vfmaq_f32(low, vld1q_f32(a + j), vld1q_f32(b + j));
        high = vfmaq_f32(high, vld1q_f32(a + j + 4), vld1q_f32(b + j + 4));
    }
    return vaddvq_f32(vaddq_f32(low, high));
}
