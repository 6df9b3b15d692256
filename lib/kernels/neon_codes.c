/* Unpacks codes and scales of a tile and quantizes weights of values, for the kernels of NEON. */
#include "codec/bitplanes.h"
#include "kernels/neon.h"

/* Add the codes of a plane to the low (h = 0) or high halves of 8 cells, from bit `low` on. plane:
 * [width][32] bytes */
LK_ALWAYS_INLINE void add_plane(const uint8_t *plane, int width, int low, int h,
                                uint8x16_t cell[8]) {
    const uint8x16_t mask = vdupq_n_u8((uint8_t)(((1 << width) - 1) << low));
    LK_UNROLL8
    for (int j = 0; j < 8; j++) {
        uint8x16_t packed = vld1q_u8(plane + j * width / 8 * 32 + h * 16);
        int right = j % (8 / width) * width - low;
        uint8x16_t code = right >= 0 ? packed >> right : packed << -right;
        if (low)
            cell[j] = vbslq_u8(mask, code, cell[j]);
        else
            cell[j] = right + width == 8 ? code : vandq_u8(code, mask);
    }
}

LK_ALWAYS_INLINE void unpack_planes(int bits, int d_head, const uint8_t *tile,
                                    const uint8_t *levels, uint8_t *cells) {
    const uint8_t *plane2 = tile + (bits & 4 ? lk_bitplanes_bytes(4, d_head) : 0);
    const uint8_t *plane1 = plane2 + (bits & 2 ? lk_bitplanes_bytes(2, d_head) : 0);
    const uint8x16_t table = levels ? vld1q_u8(levels) : vdupq_n_u8(0);
    for (int g = 0; g < d_head / 8; g++)
        for (int h = 0; h < 2; h++) {
            uint8x16_t cell[8];
            if (bits & 4) add_plane(tile + g * 4 * 32, 4, 0, h, cell);
            if (bits & 2) add_plane(plane2 + g * 2 * 32, 2, bits & 4, h, cell);
            if (bits & 1) add_plane(plane1 + g * 32, 1, bits & 6, h, cell);
            LK_UNROLL8
            for (int j = 0; j < 8; j++)
                vst1q_u8(cells + (g * 8 + j) * 32 + h * 16,
                         levels ? vqtbl1q_u8(table, cell[j]) : cell[j]);
        }
}

const uint8_t *lk_neon_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells) {
    return lk_unpack_tile(bits, d_head, tile, table, cells, unpack_planes);
}

/* Rotate 32-bit lanes to the right by n, a constant. */
LK_ALWAYS_INLINE uint8x16_t rotate_right(uint8x16_t v, int n) {
    uint32x4_t x = vreinterpretq_u32_u8(v);
    return n % 32 == 0 ? v : vreinterpretq_u8_u32(x >> n | x << (32 - n));
}

/* bits is a constant. 8 cells at a time: one 32-byte row of a plane per bit of the codes. */
LK_ALWAYS_INLINE void unpack_trellis(int bits, int d_head, const uint8_t *tile, uint8x16x4_t table,
                                     uint8_t *cells) {
    int width = bits == 3 ? 2 : bits, per_byte = 8 / width;
    const uint8_t *plane1 = tile + lk_bitplanes_bytes(2, d_head); /* of 3 bits */
    for (int g = 0; g < d_head / 8; g++)
        for (int h = 0; h < 32; h += 16) {
            LK_UNROLL8
            for (int j = 0; j < 8; j++) {
                const uint8_t *row = tile + (g * width + j / per_byte) * 32 + h;
                uint8x16_t index = rotate_right(vld1q_u8(row), j % per_byte * width);
                if (bits == 3)
                    index =
                        vbslq_u8(vdupq_n_u8(0x30),
                                 rotate_right(vld1q_u8(plane1 + g * 32 + h), (j + 28) % 32), index);
                vst1q_u8(cells + (g * 8 + j) * 32 + h,
                         vqtbl4q_u8(table, vandq_u8(index, vdupq_n_u8(63))));
            }
        }
}

const uint8_t *lk_neon_unpack_trellis(int bits, int d_head, const void *tile, const uint8_t *levels,
                                      uint8_t *cells) {
    uint8x16x4_t table = vld1q_u8_x4(levels);
    switch (bits) {
    case 1: unpack_trellis(1, d_head, tile, table, cells); break;
    case 2: unpack_trellis(2, d_head, tile, table, cells); break;
    case 3: unpack_trellis(3, d_head, tile, table, cells); break;
    default: unpack_trellis(4, d_head, tile, table, cells);
    }
    return cells;
}

/* Split eight 16-bit numbers into planes. The high byte is rounded, so that the rest is between
 * -128 and 127. */
LK_ALWAYS_INLINE void store_planes(int16x8_t x, int8_t *planes, int pad) {
    vst1_s8(planes, vrshrn_n_s16(x, 8));
    vst1_s8(planes + pad, vmovn_s16(x));
}

/* x[j] * scale[j] ~ step * (256 planes[j] + planes[pad + j]) for j < n. *sum is the sum of these
 * 16-bit numbers. Returns step. If n is constant after inlining, products stay in registers. */
LK_ALWAYS_INLINE float quantize_products(const float *x, const float *scale, int n, int8_t *planes,
                                         int pad, int32_t *sum) {
    float32x4_t product[LK_MAX_D_HEAD / 4], max = vdupq_n_f32(0);
    LK_UNROLL8
    for (int j = 0; j < n / 4; j++) {
        product[j] = vmulq_f32(vld1q_f32(x + 4 * j), vld1q_f32(scale + 4 * j));
        max = vmaxq_f32(max, vabsq_f32(product[j]));
    }
    float step = vmaxvq_f32(max) / lk_max_x16_nibbles(n);
    float inverse = step > LK_MIN_STEP ? 1 / step : 0;
    int32x4_t total = vdupq_n_s32(0);
    LK_UNROLL8
    for (int j = 0; j < n / 4; j += 2) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(product[j], inverse));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(product[j + 1], inverse));
        store_planes(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b)), planes + 4 * j, pad);
        total = vaddq_s32(total, vaddq_s32(a, b));
    }
    *sum = vaddvq_s32(total);
    return step;
}

float lk_neon_quantize_weights(const float *p, const float *scale, int8_t planes[2][LK_TILE],
                               int32_t *sum) {
    return quantize_products(p, scale, LK_TILE, planes[0], LK_TILE, sum);
}

float lk_neon_quantize_query(const float *q, const float *scale, int d_head,
                             int8_t planes[2][LK_MAX_D_HEAD]) {
    int32_t sum;
    return quantize_products(q, scale, d_head, planes[0], LK_MAX_D_HEAD, &sum);
}

LK_ALWAYS_INLINE float32x4_t f16x4_to_f32x4(uint16x4_t x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(x));
}

void lk_neon_load_f16(const uint16_t *half, int n, float *out) {
    for (int j = 0; j < n; j += 4) vst1q_f32(out + j, f16x4_to_f32x4(vld1_u16(half + j)));
}

void lk_neon_load_scales(const uint16_t *half, int n, float *out) {
    static const uint32_t lane[4] = {0, 1, 2, 3};
    LK_UNROLL8
    for (int t = 0; t < LK_TILE; t += 4) {
        float32x4_t x = f16x4_to_f32x4(vand_u16(vld1_u16(half + t), vdup_n_u16(0x7fff)));
        uint32x4_t inside = vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)t)),
                                      vdupq_n_u32((uint32_t)n));
        vst1q_f32(out + t, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), inside)));
    }
}

float lk_neon_dot_f32(const float *a, const float *b, int n) {
    float32x4_t low = vdupq_n_f32(0), high = low;
    for (int j = 0; j < n; j += 8) {
        low = vfmaq_f32(low, vld1q_f32(a + j), vld1q_f32(b + j));
        high = vfmaq_f32(high, vld1q_f32(a + j + 4), vld1q_f32(b + j + 4));
    }
    return vaddvq_f32(vaddq_f32(low, high));
}
