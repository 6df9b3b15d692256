/* Scores of keys that were brought back and are turned on the way (kern.h: score_turned). A column of lanes holds
 * as many rows; a pair of channels is turned once for all queries of a portion and never written. */
#ifndef LK_KERNELS_WIDE_TURNED_H
#define LK_KERNELS_WIDE_TURNED_H

#include "kernels/kernels.h"
#include "kernels/wide.h"

enum { LK_TURNED_QUERIES = 4 }; /* of a portion: their sums stay in registers */

/* Sums over all channels for rows [t, t + LK_LANES) and n queries q [n][d], n constant where this is inlined. */
LK_ALWAYS_INLINE void lk_turned_column(const float *k, int d, const struct lk_rope_table *turns,
                                       int t, const float *q, int n, float *s, size_t stride) {
    lk_f32x8 sum[LK_TURNED_QUERIES] = {{0}};
    int n_pair = turns ? turns->n_pair : 0;
    for (int j = 0; j < n_pair; j++) {
        int a = lk_turns_first(turns, j), b = lk_turns_second(turns, j);
        lk_f32x8 c = lk_load8(turns->turn[j][0] + t), e = lk_load8(turns->turn[j][1] + t);
        lk_f32x8 x = lk_load8(k + a * LK_TILE + t), y = lk_load8(k + b * LK_TILE + t);
        lk_f32x8 first = c * x - e * y, second = e * x + c * y;
        LK_WIDE_LOOP
        for (int i = 0; i < n; i++)
            sum[i] +=
                lk_all8(q[(size_t)i * d + a]) * first + lk_all8(q[(size_t)i * d + b]) * second;
    }
    for (int c = 2 * n_pair; c < d; c++) {
        lk_f32x8 x = lk_load8(k + c * LK_TILE + t);
        LK_WIDE_LOOP
        for (int i = 0; i < n; i++) sum[i] += lk_all8(q[(size_t)i * d + c]) * x;
    }
    LK_WIDE_LOOP
    for (int i = 0; i < n; i++) lk_store8(s + i * stride + t, sum[i]);
}

LK_ALWAYS_INLINE void lk_wide_score_turned(const float *k, int d, const struct lk_rope_table *turns,
                                           const float *q, int n_q, float *s, size_t stride) {
    for (int i = 0; i < n_q; i += LK_TURNED_QUERIES, q += (size_t)LK_TURNED_QUERIES * d,
             s += LK_TURNED_QUERIES * stride)
        for (int t = 0; t < LK_TILE; t += LK_LANES) switch (n_q - i) {
            case 1: lk_turned_column(k, d, turns, t, q, 1, s, stride); break;
            case 2: lk_turned_column(k, d, turns, t, q, 2, s, stride); break;
            case 3: lk_turned_column(k, d, turns, t, q, 3, s, stride); break;
            default: lk_turned_column(k, d, turns, t, q, LK_TURNED_QUERIES, s, stride);
            }
}

#endif
