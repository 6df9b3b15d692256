/* Integer dot products of cells with n rows, for NEON. */
#include "kernels/neon_grid.h"

/* sum[l] += products of bytes 4 l .. 4 l + 3 of the cell with four bytes of x, those of `lane`,
 * which is constant after inlining. */
LK_ALWAYS_INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t cell, int8x16_t x, int lane) {
    switch (lane) {
    case 0: return vdotq_laneq_s32(sum, cell, x, 0);
    case 1: return vdotq_laneq_s32(sum, cell, x, 1);
    case 2: return vdotq_laneq_s32(sum, cell, x, 2);
    default: return vdotq_laneq_s32(sum, cell, x, 3);
    }
}

enum {
    MAX_VECTORS = 2 * LK_NEON_QUERIES, /* rows of x in all planes */
    MAX_HALVES = 8                     /* halves of octets */
};

/* sum += `quads` (2 or 4) quads of `octets` octets of cells times x, from column c on. */
LK_ALWAYS_INLINE void accumulate_quads(const uint8_t *cells, struct lk_neon_grid grid,
                                       struct lk_neon_operand x, int c, int quads, int octets,
                                       int32x4_t sum[][MAX_HALVES]) {
    const int8_t *row = x.x + c;
    int8x16_t v[MAX_VECTORS];
    LK_UNROLL8
    for (int i = 0; i < x.n * x.planes; i++)
        v[i] = quads == 4 ? vld1q_s8(row + i * x.pad)
                          : vcombine_s8(vld1_s8(row + i * x.pad), vdup_n_s8(0));
    LK_UNROLL8
    for (int k = 0; k < quads; k++) {
        LK_UNROLL8
        for (int h = 0; h < 2 * octets; h++) {
            uint8x16_t half = vld1q_u8(cells + k * grid.quad + h / 2 * grid.octet + h % 2 * 16);
            int8x16_t cell = vreinterpretq_s8_u8(x.flip ? veorq_u8(half, vdupq_n_u8(0x80)) : half);
            LK_UNROLL8
            for (int i = 0; i < x.n * x.planes; i++) sum[i][h] = dot_lane(sum[i][h], cell, v[i], k);
        }
    }
}

/* dot[i * stride + r] = row i of x times row r of `octets` octets of cells. */
LK_ALWAYS_INLINE void dot_octets(const uint8_t *cells, struct lk_neon_grid grid,
                                 struct lk_neon_operand x, int octets, int32_t *dot,
                                 size_t stride) {
    int32x4_t sum[MAX_VECTORS][MAX_HALVES];
    LK_UNROLL8
    for (int i = 0; i < x.n * x.planes; i++) LK_UNROLL8
    for (int h = 0; h < 2 * octets; h++) sum[i][h] = vdupq_n_s32(0);
    int k = 0;
    for (; k + 4 <= grid.n_quad; k += 4)
        accumulate_quads(cells + k * grid.quad, grid, x, 4 * k, 4, octets, sum);
    if (k < grid.n_quad) accumulate_quads(cells + k * grid.quad, grid, x, 4 * k, 2, octets, sum);
    LK_UNROLL8
    for (int i = 0; i < x.n; i++) LK_UNROLL8
    for (int h = 0; h < 2 * octets; h++) {
        int32x4_t all = sum[i * x.planes][h];
        if (x.planes == 2) all = vaddq_s32(vshlq_n_s32(all, 8), sum[i * x.planes + 1][h]);
        vst1q_s32(dot + i * stride + 4 * h, all);
    }
}

void lk_neon_dot_k(const uint8_t *cells, int d_head, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_TILE]) {
    if (x->matrix)
        lk_neon_i8mm_dot_k(cells, d_head, flip, x, dot);
    else
        lk_neon_grid_k(dot_octets, cells, d_head, flip, x, dot);
}

void lk_neon_dot_v(const uint8_t *cells, int n_channel, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_MAX_D_HEAD]) {
    if (x->matrix)
        lk_neon_i8mm_dot_v(cells, n_channel, flip, x, dot);
    else
        lk_neon_grid_v(dot_octets, cells, n_channel, flip, x, dot);
}

void lk_neon_dot_mean(const int8_t *code, int d_head, const struct lk_neon_rows *x,
                      int32_t sum[LK_NEON_QUERIES]) {
    for (int i = 0; i < x->n; i++) {
        const int8_t *row = x->x + i * 2 * x->pad;
        int32x4_t high = vdupq_n_s32(0), low = high;
        for (int c = 0; c < d_head; c += 16) {
            int8x16_t mean = vld1q_s8(code + c);
            high = vdotq_s32(high, mean, vld1q_s8(row + c));
            low = vdotq_s32(low, mean, vld1q_s8(row + x->pad + c));
        }
        sum[i] = vaddvq_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
    }
}
