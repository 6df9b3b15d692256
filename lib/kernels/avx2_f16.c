/* Half floats: converted in registers, multiplied in float. */
#include "codec/f16.h"
#include "kernels/avx2.h"

#include <immintrin.h>

enum { QUERIES = 3, ROWS = 4 }; /* 12 sums stay in registers */

LK_ALWAYS_INLINE __m256 load8(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Sums of four vectors, one per lane. */
LK_ALWAYS_INLINE __m128 totals(const __m256 v[ROWS]) {
    __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

LK_ALWAYS_INLINE void score4(const uint16_t *const row[ROWS], const float *q, int d, int n,
                             float *s, size_t stride) {
    __m256 sum[QUERIES][ROWS];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int r = 0; r < ROWS; r++) sum[i][r] = _mm256_setzero_ps();
    for (int c = 0; c < d; c += 8) {
        LK_UNROLL
        for (int r = 0; r < ROWS; r++) {
            __m256 x = load8(row[r] + c);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum[i][r] = _mm256_fmadd_ps(x, _mm256_loadu_ps(q + i * d + c), sum[i][r]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) _mm_storeu_ps(s + i * stride, totals(sum[i]));
}

void lk_avx2_f16_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride) {
    int d = tile->d_head;
    for (int t = 0; t < tile->n; t += ROWS) {
        lk_tile_fetch(tile, t * d * sizeof(uint16_t), (t + ROWS) * d * sizeof(uint16_t));
        const uint16_t *row[ROWS];
        for (int r = 0; r < ROWS;
             r++) /* past the last row, the last row again: its scores are ignored */
            row[r] =
                lk_f16_row(tile->head, d, tile->row0 + (t + r < tile->n ? t + r : tile->n - 1));
        for (int i = 0; i < q->n_q; i += QUERIES) {
            const float *query = q->q + (size_t)i * d;
            float *out = s + i * stride + t;
            if (q->n_q - i == 1)
                score4(row, query, d, 1, out, stride);
            else if (q->n_q - i == 2)
                score4(row, query, d, 2, out, stride);
            else
                score4(row, query, d, 3, out, stride);
        }
    }
}

/* `octets` (1 or 2) times 8 channels of n queries over all of the tile's rows. Even rows and odd ones have sums of their own:
 * a sum waits for the one before it longer than the others take. */
LK_ALWAYS_INLINE void add_channels(const uint16_t *x, int d, int rows, const float *p,
                                   size_t stride, int n, int octets, float *acc) {
    __m256 sum[2][QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < octets; k++)
        sum[0][i][k] = _mm256_loadu_ps(acc + (size_t)i * d + 8 * k),
        sum[1][i][k] = _mm256_setzero_ps();
    for (int t = 0; t < rows; t += 2) { /* behind the last row there is none, but its weight is 0 */
        LK_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            __m256 cell[2];
            LK_UNROLL
            for (int k = 0; k < octets; k++)
                cell[k] = load8(x + (size_t)(t + odd < rows ? t + odd : t) * d + 8 * k);
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

/* first: of those queries that the tile is read for, so that others need not fetch again what comes after it. */
LK_ALWAYS_INLINE void add_queries(const struct lk_tile *tile, const float *p, size_t stride, int n,
                                  bool first, float *acc) {
    enum { PIECE = 16 };
    int d = tile->d_head;
    const uint16_t *x = lk_f16_row(tile->head, d, tile->row0);
    for (int c = 0; c < d; c += PIECE) {
        size_t from = (size_t)c * tile->n *
                      sizeof *x; /* evenly: cores wait where they have asked for too many lines */
        if (first) lk_tile_fetch(tile, from, from + PIECE * tile->n * sizeof *x);
        if (c + PIECE <= d)
            add_channels(x + c, d, tile->n, p, stride, n, 2, acc + c);
        else
            add_channels(x + c, d, tile->n, p, stride, n, 1, acc + c);
    }
}

void lk_avx2_f16_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    for (int i = 0; i < n_q; i += QUERIES) {
        const float *weight = p + i * stride;
        float *out = acc + (size_t)i * tile->d_head;
        if (n_q - i == 1)
            add_queries(tile, weight, stride, 1, i == 0, out);
        else if (n_q - i == 2)
            add_queries(tile, weight, stride, 2, i == 0, out);
        else
            add_queries(tile, weight, stride, 3, i == 0, out);
    }
}
