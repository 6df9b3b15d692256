#include "kernels/exp2.h"
#include "kernels/neon.h"

#include <math.h>
#include <string.h>

float lk_neon_max(const float *s, int n) {
    float32x4_t most = vdupq_n_f32(-INFINITY);
    int t = 0;
    for (; t + 4 <= n; t += 4) most = vmaxq_f32(most, vld1q_f32(s + t));
    float rest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    memcpy(rest, s + t, (n - t) * sizeof *s);
    return vmaxvq_f32(vmaxq_f32(most, vld1q_f32(rest)));
}

/* 2^x for x up to 127. */
static inline float32x4_t exp2_4(float32x4_t x) {
    uint32x4_t counts = vcgtq_f32(x, vdupq_n_f32(lk_exp2_min));
    float32x4_t k = vrndnq_f32(x), r = vsubq_f32(x, k), y = vdupq_n_f32(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = vfmaq_f32(vdupq_n_f32(lk_exp2[i]), y, r);
    int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(k), vdupq_n_s32(127)), 23);
    y = vmulq_f32(y, vreinterpretq_f32_s32(power));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(y), counts));
}

float lk_neon_exp_sum(float *s, int n, float scale, float max) {
    const float32x4_t factor = vdupq_n_f32(scale * lk_log2e), most = vdupq_n_f32(max * lk_log2e);
    float32x4_t sum = vdupq_n_f32(0);
    int t = 0;
    for (; t + 4 <= n; t += 4) {
        float32x4_t y = exp2_4(vsubq_f32(vmulq_f32(vld1q_f32(s + t), factor), most));
        vst1q_f32(s + t, y);
        sum = vaddq_f32(sum, y);
    }
    float rest[4] = {0}, total = vaddvq_f32(sum);
    memcpy(rest, s + t, (n - t) * sizeof *s);
    vst1q_f32(rest, exp2_4(vsubq_f32(vmulq_f32(vld1q_f32(rest), factor), most)));
    memcpy(s + t, rest, (n - t) * sizeof *s);
    for (int i = 0; i < n - t; i++) total += rest[i];
    return total;
}
