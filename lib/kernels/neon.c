/* Table of the NEON kernels, and softmax. */
#include "kernels/neon.h"

#include "kernels/composed.h"
#include "kernels/vec8.h"
#include "kernels/vec8_kernels.h"

#include <math.h>
#include <string.h>

/* ---- softmax ---- */

static float max_f32(const float *s, int n) {
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

static float exp_sum(float *s, int n, float scale, float max) {
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

/* ---- table ---- */

/* The same kernels for few and for many queries. */
#define BOTH(codec)                                                                                \
    {                                                                                              \
        lk_neon_##codec##_score, lk_neon_##codec##_score, lk_neon_##codec##_accumulate,            \
            lk_neon_##codec##_accumulate                                                           \
    }

#define NEON_TABLE(title)                                                                          \
    {                                                                                              \
        .name = title, .max_bits_q8 = LK_NEON_MAX_BITS_Q8,                                         \
        .coding = {[LK_F16] = BOTH(f16),                                                           \
                   [LK_INT8] = BOTH(per_token),                                                    \
                   [LK_KIVI] = BOTH(kivi),                                                         \
                   [LK_ROT] = BOTH(per_token),                                                     \
                   LK_COMPOSED_CODINGS},                                                           \
        .score_tiles = lk_neon_score_tiles, .combine_queries = lk_vec8_combine_queries,            \
        .max = max_f32, .exp_sum = exp_sum, LK_VEC8_KERNELS                                        \
    }

const struct lk_kernels lk_kernels_neon = NEON_TABLE("neon");
/* The functions know it by its address. */
const struct lk_kernels lk_kernels_neon_i8mm = NEON_TABLE("neon-i8mm");
