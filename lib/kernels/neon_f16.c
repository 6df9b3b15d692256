/* f16 rows for NEON: converted in registers, multiplied as floats. */
#include "codec/f16.h"
#include "kernels/neon.h"

enum { QUERIES = 4, ROWS = 4 }; /* 16 sums stay in registers */

LK_ALWAYS_INLINE float32x4_t load_f16x4(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

LK_ALWAYS_INLINE void score_rows(const uint16_t *const row[ROWS], const float *q, int d, int n,
                                 float *s, size_t stride) {
    float32x4_t sum[QUERIES][ROWS];
    LK_UNROLL8
    for (int i = 0; i < n; i++) LK_UNROLL8
    for (int r = 0; r < ROWS; r++) sum[i][r] = vdupq_n_f32(0);
    for (int c = 0; c < d; c += 4) {
        float32x4_t x[ROWS];
        LK_UNROLL8
        for (int r = 0; r < ROWS; r++) x[r] = load_f16x4(row[r] + c);
        LK_UNROLL8
        for (int i = 0; i < n; i++) {
            float32x4_t query = vld1q_f32(q + (size_t)i * d + c);
            LK_UNROLL8
            for (int r = 0; r < ROWS; r++) sum[i][r] = vfmaq_f32(sum[i][r], x[r], query);
        }
    }
    LK_UNROLL8
    for (int i = 0; i < n; i++)
        vst1q_f32(s + i * stride,
                  vpaddq_f32(vpaddq_f32(sum[i][0], sum[i][1]), vpaddq_f32(sum[i][2], sum[i][3])));
}

static void score_tile(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride) {
    int d = tile->d_head;
    for (int t = 0; t < tile->n; t += ROWS) {
        lk_tile_prefetch(tile, t * d * sizeof(uint16_t), (t + ROWS) * d * sizeof(uint16_t));
        const uint16_t *row[ROWS];
        /* After the last row repeat it; those scores are ignored. */
        for (int r = 0; r < ROWS; r++)
            row[r] =
                lk_f16_row(tile->head, d, tile->row0 + (t + r < tile->n ? t + r : tile->n - 1));
        for (int i = 0; i < q->n_q; i += QUERIES) {
            const float *query = q->q + (size_t)i * d;
            float *out = s + i * stride + t;
            if (q->n_q - i == 1)
                score_rows(row, query, d, 1, out, stride);
            else if (q->n_q - i == 2)
                score_rows(row, query, d, 2, out, stride);
            else if (q->n_q - i == 3)
                score_rows(row, query, d, 3, out, stride);
            else
                score_rows(row, query, d, 4, out, stride);
        }
    }
}

/* acc [n][d] += weights times 4 * quads channels x (quads = 2 or 4) of all rows of the tile. */
LK_ALWAYS_INLINE void accumulate_channels(const uint16_t *x, int d, int rows, const float *p,
                                          size_t stride, int n, int quads, float *acc) {
    float32x4_t sum[QUERIES][4];
    LK_UNROLL8
    for (int i = 0; i < n; i++) LK_UNROLL8
    for (int k = 0; k < quads; k++) sum[i][k] = vld1q_f32(acc + (size_t)i * d + 4 * k);
    for (int t = 0; t < rows; t++) {
        float32x4_t value[4];
        LK_UNROLL8
        for (int k = 0; k < quads; k++) value[k] = load_f16x4(x + (size_t)t * d + 4 * k);
        LK_UNROLL8
        for (int i = 0; i < n; i++) LK_UNROLL8
        for (int k = 0; k < quads; k++)
            sum[i][k] = vfmaq_n_f32(sum[i][k], value[k], p[i * stride + t]);
    }
    LK_UNROLL8
    for (int i = 0; i < n; i++) LK_UNROLL8
    for (int k = 0; k < quads; k++) vst1q_f32(acc + (size_t)i * d + 4 * k, sum[i][k]);
}

LK_ALWAYS_INLINE void accumulate_queries(const struct lk_tile *tile, const float *p, size_t stride,
                                         int n, float *acc) {
    int d = tile->d_head, c = 0;
    const uint16_t *x = lk_f16_row(tile->head, d, tile->row0);
    for (; c + 16 <= d; c += 16) accumulate_channels(x + c, d, tile->n, p, stride, n, 4, acc + c);
    if (c < d) accumulate_channels(x + c, d, tile->n, p, stride, n, 2, acc + c);
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    lk_tile_prefetch(tile, 0, (size_t)tile->n * tile->d_head * sizeof(uint16_t));
    for (int i = 0; i < n_q; i += QUERIES) {
        const float *weight = p + i * stride;
        float *out = acc + (size_t)i * tile->d_head;
        if (n_q - i == 1)
            accumulate_queries(tile, weight, stride, 1, out);
        else if (n_q - i == 2)
            accumulate_queries(tile, weight, stride, 2, out);
        else if (n_q - i == 3)
            accumulate_queries(tile, weight, stride, 3, out);
        else
            accumulate_queries(tile, weight, stride, 4, out);
    }
}

void lk_neon_f16_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                       const struct lk_queries *q, float *s, size_t stride) {
    (void)kernels;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(&tile, q, s, stride);
    }
}

void lk_neon_f16_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                            const float *p, size_t stride, int n_q, float *acc) {
    (void)kernels;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, acc);
    }
}
