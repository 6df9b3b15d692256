/* A layer of a small network with gelu (kern.h: gelu_layer). A column of lanes holds as many outputs, and each weight is
 * read once. */
#ifndef LK_KERNELS_WIDE_GELU_H
#define LK_KERNELS_WIDE_GELU_H

#include "kernels/exp2.h"
#include "kernels/wide.h"

enum { LK_GELU_COLUMNS = 8 }; /* of a portion: their sums stay in registers */

/* x / (1 + e^-t), t = 2 sqrt(2/pi) (x + 0.044715 x^3). The power of 2 is bounded where the quotient is x or all but 0. */
LK_ALWAYS_INLINE lk_f32x8 lk_gelu8(lk_f32x8 x) {
    const float most = 126, factor = -1.5957691216057308f * lk_log2e;
    lk_f32x8 t =
        lk_max8(lk_min8(factor * x * (1 + 0.044715f * x * x), lk_all8(most)), lk_all8(-most));
    lk_i32x8 k = lk_nearest8(t);
    lk_f32x8 r = t - lk_to_float8(k), y = lk_all8(lk_exp2[5]);
    LK_WIDE_LOOP
    for (int i = 4; i >= 0; i--) y = y * r + lk_exp2[i];
    return x / (1 + y * (lk_f32x8)((k + 127) << 23));
}

/* 8 n outputs, n constant where this is inlined. */
LK_ALWAYS_INLINE void lk_gelu_columns(const float *x, const uint16_t *w, int n_in, int n_out,
                                      float *y, int n) {
    lk_f32x8 sum[LK_GELU_COLUMNS] = {{0}};
    for (int i = 0; i < n_in; i++, w += n_out) {
        LK_WIDE_LOOP
        for (int v = 0; v < n; v++) sum[v] += x[i] * lk_load_halves8(w + LK_LANES * v);
    }
    LK_WIDE_LOOP
    for (int v = 0; v < n; v++) lk_store8(y + LK_LANES * v, lk_gelu8(sum[v]));
}

/* The same for n < LK_LANES outputs. */
LK_ALWAYS_INLINE void lk_gelu_rest(const float *x, const uint16_t *w, int n_in, int n_out, float *y,
                                   int n) {
    lk_f32x8 sum = {0};
    uint16_t row[LK_LANES] = {0};
    for (int i = 0; i < n_in; i++, w += n_out) {
        memcpy(row, w, (size_t)n * sizeof *w);
        sum += x[i] * lk_load_halves8(row);
    }
    sum = lk_gelu8(sum);
    memcpy(y, &sum, (size_t)n * sizeof *y);
}

LK_ALWAYS_INLINE void lk_wide_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out,
                                         float *y) {
    int o = 0;
    for (; o + LK_GELU_COLUMNS * LK_LANES <= n_out; o += LK_GELU_COLUMNS * LK_LANES)
        lk_gelu_columns(x, w + o, n_in, n_out, y + o, LK_GELU_COLUMNS);
    for (; o + LK_LANES <= n_out; o += LK_LANES) lk_gelu_columns(x, w + o, n_in, n_out, y + o, 1);
    if (o < n_out) lk_gelu_rest(x, w + o, n_in, n_out, y + o, n_out - o);
}

#endif
