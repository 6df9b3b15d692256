/* Integer dot products of cells for NEON with the matrix products of Armv8.6 (i8mm): the same sums
 * as neon_dot.c, with half as many instructions that multiply.
 *
 * SMMLA multiplies two rows of x by two rows of cells, 8 columns each. Two vectors of cells, each 4
 * rows of 4 columns, are zipped into two of 2 rows of 8 columns. The two rows of x are the planes
 * of a row of 16 bits, or two rows of 8 bits. */
#include "kernels/neon_grid.h"

enum {
    MAX_PAIRS = LK_NEON_QUERIES, /* pairs of rows of x */
    MAX_TWOS = 16                /* pairs of rows of cells */
};

LK_ALWAYS_INLINE int32x4_t load_cells(const uint8_t *cells, bool flip) {
    uint8x16_t half = vld1q_u8(cells);
    return vreinterpretq_s32_u8(flip ? veorq_u8(half, vdupq_n_u8(0x80)) : half);
}

/* Row 2 i and row 2 i + 1 of x at column c. Without a second one, the first twice. */
LK_ALWAYS_INLINE int8x16_t load_pair(struct lk_neon_operand x, int i, int c) {
    int second = 2 * i + 1 < x.n * x.planes ? 2 * i + 1 : 2 * i;
    return vcombine_s8(vld1_s8(x.x + 2 * i * x.pad + c), vld1_s8(x.x + second * x.pad + c));
}

/* dot[i * stride + r] = row i of x times row r of `octets` octets of cells. */
LK_ALWAYS_INLINE void dot_octets(const uint8_t *cells, struct lk_neon_grid grid,
                                 struct lk_neon_operand x, int octets, int32_t *dot,
                                 size_t stride) {
    int pairs = (x.n * x.planes + 1) / 2;
    int32x4_t sum[MAX_PAIRS][MAX_TWOS]; /* first row of x times both rows of cells, second row */
    LK_UNROLL8
    for (int i = 0; i < pairs; i++) LK_UNROLL8
    for (int h = 0; h < 4 * octets; h++) sum[i][h] = vdupq_n_s32(0);
    for (int k = 0; k < grid.n_quad; k += 2) {
        int8x16_t v[MAX_PAIRS];
        LK_UNROLL8
        for (int i = 0; i < pairs; i++) v[i] = load_pair(x, i, 4 * k);
        LK_UNROLL8
        for (int h = 0; h < 2 * octets; h++) {
            const uint8_t *half = cells + k * grid.quad + h / 2 * grid.octet + h % 2 * 16;
            int32x4_t a = load_cells(half, x.flip), b = load_cells(half + grid.quad, x.flip);
            int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)),
                      high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
            LK_UNROLL8
            for (int i = 0; i < pairs; i++) {
                sum[i][2 * h] = vmmlaq_s32(sum[i][2 * h], v[i], low);
                sum[i][2 * h + 1] = vmmlaq_s32(sum[i][2 * h + 1], v[i], high);
            }
        }
    }
    LK_UNROLL8
    for (int i = 0; i < pairs; i++) LK_UNROLL8
    for (int h = 0; h < 2 * octets; h++) {
        int64x2_t a = vreinterpretq_s64_s32(sum[i][2 * h]),
                  b = vreinterpretq_s64_s32(sum[i][2 * h + 1]);
        int32x4_t first = vreinterpretq_s32_s64(vzip1q_s64(a, b)),
                  second = vreinterpretq_s32_s64(vzip2q_s64(a, b));
        if (x.planes == 2) {
            vst1q_s32(dot + i * stride + 4 * h, vaddq_s32(vshlq_n_s32(first, 8), second));
            continue;
        }
        vst1q_s32(dot + 2 * i * stride + 4 * h, first);
        if (2 * i + 1 < x.n) vst1q_s32(dot + (2 * i + 1) * stride + 4 * h, second);
    }
}

void lk_neon_i8mm_dot_k(const uint8_t *cells, int d_head, bool flip, const struct lk_neon_rows *x,
                        int32_t dot[][LK_TILE]) {
    lk_neon_grid_k(dot_octets, cells, d_head, flip, x, dot);
}

void lk_neon_i8mm_dot_v(const uint8_t *cells, int n_channel, bool flip,
                        const struct lk_neon_rows *x, int32_t dot[][LK_MAX_D_HEAD]) {
    lk_neon_grid_v(dot_octets, cells, n_channel, flip, x, dot);
}
