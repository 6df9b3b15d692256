/* Kernels on plain floats for NEON: softmax, scores with RoPE, GELU layers and offsets of
 * weights. */
#include "kernels/neon.h"
#include "kernels/vec8_f32.h"

#include <math.h>
#include <string.h>

float lk_neon_max(const float *s, int n) {
    float32x4_t max = vdupq_n_f32(-INFINITY);
    int t = 0;
    for (; t + 4 <= n; t += 4) max = vmaxq_f32(max, vld1q_f32(s + t));
    float rest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    memcpy(rest, s + t, (n - t) * sizeof *s);
    return vmaxvq_f32(vmaxq_f32(max, vld1q_f32(rest)));
}

/* 2^x for x up to 127. */
static inline float32x4_t exp2_f32x4(float32x4_t x) {
    uint32x4_t normal = vcgtq_f32(x, vdupq_n_f32(lk_exp2_min));
    float32x4_t k = vrndnq_f32(x), r = vsubq_f32(x, k), y = vdupq_n_f32(lk_exp2[5]);
    LK_UNROLL8
    for (int i = 4; i >= 0; i--) y = vfmaq_f32(vdupq_n_f32(lk_exp2[i]), y, r);
    int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(k), vdupq_n_s32(127)), 23);
    y = vmulq_f32(y, vreinterpretq_f32_s32(power));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(y), normal));
}

float lk_neon_exp_sum(float *s, int n, float scale, float max) {
    const float32x4_t factor = vdupq_n_f32(scale * lk_log2e), shift = vdupq_n_f32(max * lk_log2e);
    float32x4_t sum = vdupq_n_f32(0);
    int t = 0;
    for (; t + 4 <= n; t += 4) {
        float32x4_t y = exp2_f32x4(vsubq_f32(vmulq_f32(vld1q_f32(s + t), factor), shift));
        vst1q_f32(s + t, y);
        sum = vaddq_f32(sum, y);
    }
    float rest[4] = {0}, total = vaddvq_f32(sum);
    memcpy(rest, s + t, (n - t) * sizeof *s);
    vst1q_f32(rest, exp2_f32x4(vsubq_f32(vmulq_f32(vld1q_f32(rest), factor), shift)));
    memcpy(s + t, rest, (n - t) * sizeof *s);
    for (int i = 0; i < n - t; i++) total += rest[i];
    return total;
}

void lk_neon_score_rope(const struct lk_rope_keys *keys, const float *q, size_t q_stride, int n_q,
                        float *s, size_t stride) {
    lk_vec8_score_rope(keys, q, q_stride, n_q, s, stride);
}

void lk_neon_combine_queries(const struct lk_queries *x, const float *w, int n,
                             const struct lk_queries *out) {
    lk_vec8_combine_queries(x, w, n, out);
}

void lk_neon_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    lk_vec8_gelu_layer(x, w, n_in, n_out, y);
}

void lk_neon_delta_step(const float *from, float *to, int d, const float *q, const float *k,
                        const float *v, float decay, float beta, float *out) {
    lk_vec8_delta_step(from, to, d, q, k, v, decay, beta, out);
}

void lk_neon_scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out) {
    lk_vec8_scan_step(from, to, n, d, q, k, v, decay, beta, out);
}

void lk_neon_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y) {
    lk_vec8_add_offsets(x, n_tok, n_in, offset, n_out, first, n, y);
}
