/* Rows of cells and what they are multiplied with, as the integer dot products for NEON see them
 * (neon_dot.c, neon_i8mm.c). n, the number of planes, `flip` and the function are constants after
 * inlining, so that loops unroll and sums stay in registers. */
#ifndef LK_KERNELS_NEON_GRID_H
#define LK_KERNELS_NEON_GRID_H

#include "kernels/neon.h"

/* Layout of cells: rows (tokens of K, channels of V) in octets, columns in quads. */
struct lk_neon_grid {
    /* bytes from one to the next; constants, so that they become part of the loads */
    int octet, quad;
    int n_octet, n_quad;
};

/* n rows of one plane (8 bits) or two (16 bits), planes `pad` bytes apart; constants but for x,
 * pad. */
struct lk_neon_operand {
    const int8_t *x;
    int pad, n, planes;
    bool flip; /* subtract 128 from each cell */
};

/* dot[i * stride + r] = row i of x times row r of `octets` octets of cells. */
typedef void lk_neon_octets_fn(const uint8_t *cells, struct lk_neon_grid grid,
                               struct lk_neon_operand x, int octets, int32_t *dot, size_t stride);

/* Same as above, for all octets. As many per pass as leave their sums, x and a cell in 32
 * registers. */
LK_ALWAYS_INLINE void lk_neon_dot_rows(lk_neon_octets_fn *dot_octets, const uint8_t *cells,
                                       struct lk_neon_grid grid, struct lk_neon_operand x,
                                       int32_t *dot, size_t stride) {
    int octets = x.n * x.planes <= 2 ? 4 : x.n * x.planes <= 4 ? 2 : 1, o = 0;
    for (; o + octets <= grid.n_octet; o += octets)
        dot_octets(cells + o * grid.octet, grid, x, octets, dot + 8 * o, stride);
    for (; o < grid.n_octet; o++)
        dot_octets(cells + o * grid.octet, grid, x, 1, dot + 8 * o, stride);
}

LK_ALWAYS_INLINE void lk_neon_dot_any_n(lk_neon_octets_fn *dot_octets, const uint8_t *cells,
                                        struct lk_neon_grid grid, const struct lk_neon_rows *x,
                                        int planes, bool flip, int32_t *dot, size_t stride) {
    struct lk_neon_operand row = {x->x, x->pad, 1, planes, flip};
    if (x->n == 1) lk_neon_dot_rows(dot_octets, cells, grid, row, dot, stride);
    row.n = 2;
    if (x->n == 2) lk_neon_dot_rows(dot_octets, cells, grid, row, dot, stride);
    row.n = 3;
    if (x->n == 3) lk_neon_dot_rows(dot_octets, cells, grid, row, dot, stride);
    row.n = 4;
    if (x->n == 4) lk_neon_dot_rows(dot_octets, cells, grid, row, dot, stride);
}

/* lk_neon_dot_k. */
LK_ALWAYS_INLINE void lk_neon_grid_k(lk_neon_octets_fn *dot_octets, const uint8_t *cells,
                                     int d_head, bool flip, const struct lk_neon_rows *x,
                                     int32_t dot[][LK_TILE]) {
    struct lk_neon_grid grid = {
        .octet = 32, .quad = LK_TILE * 4, .n_octet = LK_TILE / 8, .n_quad = d_head / 4};
    if (!x->fine)
        lk_neon_dot_any_n(dot_octets, cells, grid, x, 1, false, dot[0], LK_TILE);
    else if (flip)
        lk_neon_dot_any_n(dot_octets, cells, grid, x, 2, true, dot[0], LK_TILE);
    else
        lk_neon_dot_any_n(dot_octets, cells, grid, x, 2, false, dot[0], LK_TILE);
}

/* lk_neon_dot_v. */
LK_ALWAYS_INLINE void lk_neon_grid_v(lk_neon_octets_fn *dot_octets, const uint8_t *cells,
                                     int n_channel, bool flip, const struct lk_neon_rows *x,
                                     int32_t dot[][LK_MAX_D_HEAD]) {
    struct lk_neon_grid grid = {
        .octet = LK_TILE * 8, .quad = 32, .n_octet = n_channel / 8, .n_quad = LK_TILE / 4};
    if (flip)
        lk_neon_dot_any_n(dot_octets, cells, grid, x, 2, true, dot[0], LK_MAX_D_HEAD);
    else
        lk_neon_dot_any_n(dot_octets, cells, grid, x, 2, false, dot[0], LK_MAX_D_HEAD);
}

#endif
