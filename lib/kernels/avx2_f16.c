/* f16 rows for AVX2: converted in registers, multiplied as floats. */
#include "codec/f16.h"
#include "kernels/avx2_vec.h"

enum { QUERIES = 3, ROWS = 4 }; /* 12 sums stay in registers */

/* Sums of four vectors, one per lane. */
LK_ALWAYS_INLINE __m128 hsum_f32x8_x4(const __m256 v[ROWS]) {
    __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

LK_ALWAYS_INLINE void score_rows(const uint16_t *const row[ROWS], const float *q, int d, int n,
                                 float *s, size_t stride) {
    __m256 sum[QUERIES][ROWS];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int r = 0; r < ROWS; r++) sum[i][r] = _mm256_setzero_ps();
    for (int c = 0; c < d; c += 8) {
        LK_UNROLL
        for (int r = 0; r < ROWS; r++) {
            __m256 x = load_f16x8(row[r] + c);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum[i][r] = _mm256_fmadd_ps(x, _mm256_loadu_ps(q + i * d + c), sum[i][r]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) _mm_storeu_ps(s + i * stride, hsum_f32x8_x4(sum[i]));
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
            else
                score_rows(row, query, d, 3, out, stride);
        }
    }
}

/* acc [n][d] += weights times 8 * octets channels x (octets = 1 or 2) of all rows of the tile. Even
 * and odd rows have separate sums, because the latency of an addition exceeds the time of the other
 * instructions. */
LK_ALWAYS_INLINE void accumulate_channels(const uint16_t *x, int d, int rows, const float *p,
                                          size_t stride, int n, int octets, float *acc) {
    __m256 sum[2][QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++)
        sum[0][i][k] = _mm256_loadu_ps(acc + (size_t)i * d + 8 * k),
        sum[1][i][k] = _mm256_setzero_ps();
    for (int t = 0; t < rows; t += 2) { /* the row after an odd last row has weight 0 */
        LK_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            __m256 cell[2];
            LK_UNROLL
            for (int k = 0; k < octets; k++)
                cell[k] = load_f16x8(x + (size_t)(t + odd < rows ? t + odd : t) * d + 8 * k);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                __m256 weight = _mm256_broadcast_ss(p + i * stride + t + odd);
                LK_UNROLL
                for (int k = 0; k < octets; k++)
                    sum[odd][i][k] = _mm256_fmadd_ps(cell[k], weight, sum[odd][i][k]);
            }
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++)
        _mm256_storeu_ps(acc + (size_t)i * d + 8 * k, _mm256_add_ps(sum[0][i][k], sum[1][i][k]));
}

/* prefetch: true for the first group of queries of a tile; later groups need not fetch again. */
LK_ALWAYS_INLINE void accumulate_queries(const struct lk_tile *tile, const float *p, size_t stride,
                                         int n, bool prefetch, float *acc) {
    enum { CHANNELS = 16 };
    int d = tile->d_head;
    const uint16_t *x = lk_f16_row(tile->head, d, tile->row0);
    for (int c = 0; c < d; c += CHANNELS) {
        /* Spread evenly: a core stalls if too many lines are in flight. */
        size_t from = (size_t)c * tile->n * sizeof *x;
        if (prefetch) lk_tile_prefetch(tile, from, from + CHANNELS * tile->n * sizeof *x);
        if (c + CHANNELS <= d)
            accumulate_channels(x + c, d, tile->n, p, stride, n, 2, acc + c);
        else
            accumulate_channels(x + c, d, tile->n, p, stride, n, 1, acc + c);
    }
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    for (int i = 0; i < n_q; i += QUERIES) {
        const float *weight = p + i * stride;
        float *out = acc + (size_t)i * tile->d_head;
        if (n_q - i == 1)
            accumulate_queries(tile, weight, stride, 1, i == 0, out);
        else if (n_q - i == 2)
            accumulate_queries(tile, weight, stride, 2, i == 0, out);
        else
            accumulate_queries(tile, weight, stride, 3, i == 0, out);
    }
}

void lk_avx2_f16_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                       const struct lk_queries *q, float *s, size_t stride) {
    (void)kernels;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(&tile, q, s, stride);
    }
}

void lk_avx2_f16_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                            const float *p, size_t stride, int n_q, float *acc) {
    (void)kernels;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, acc);
    }
}
