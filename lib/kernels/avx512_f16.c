/* f16 rows for many queries with AVX-512: blocked matrix products over a tile that is converted to
 * floats once. Few queries do not pay for the conversion and use avx2_f16.c. */
#include "codec/f16.h"
#include "kernels/avx512.h"

#include <immintrin.h>

enum { QUERIES = 12, MIN_QUERIES = 6, LANES = 16 }; /* 24 sums stay in registers */

/* Mask of the first n of 16 lanes, for any n. */
static inline __mmask16 lane_mask(int n) {
    return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* A matrix product: c[i][j] = sum over k < n_k of a[i][k] b[k][j], for j < n_col <= 2 * LANES. b:
 * [n_k][2 * LANES]. Rows of a and c are lda and ldc floats apart. add: += instead of = */
struct matmul {
    const float *a, *b;
    size_t lda, ldc;
    int n_k, n_col;
    bool add;
    float *c;
};

/* Rows [i0, i0 + n) of c; n is a constant after inlining. */
LK_ALWAYS_INLINE void matmul_rows(const struct matmul *m, int i0, int n) {
    const float *a = m->a + i0 * m->lda, *b = m->b;
    float *c = m->c + i0 * m->ldc;
    const size_t lda = m->lda, ldc = m->ldc;
    const __mmask16 lo = lane_mask(m->n_col), hi = lane_mask(m->n_col - LANES);
    __m512 sum[QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        sum[i][0] = m->add ? _mm512_maskz_loadu_ps(lo, c + i * ldc) : _mm512_setzero_ps();
        sum[i][1] = m->add ? _mm512_maskz_loadu_ps(hi, c + i * ldc + LANES) : _mm512_setzero_ps();
    }
    for (int k = 0; k < m->n_k; k++, b += 2 * LANES) {
        __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + LANES);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512 x = _mm512_set1_ps(a[i * lda + k]);
            sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        _mm512_mask_storeu_ps(c + i * ldc, lo, sum[i][0]);
        _mm512_mask_storeu_ps(c + i * ldc + LANES, hi, sum[i][1]);
    }
}

static void matmul(const struct matmul *m, int n) {
    int i = 0;
    for (; i + QUERIES <= n; i += QUERIES) matmul_rows(m, i, QUERIES);
    for (; i + 4 <= n; i += 4) matmul_rows(m, i, 4);
    for (; i < n; i++) matmul_rows(m, i, 1);
}

LK_ALWAYS_INLINE __m512 load_f16_as_f32(const uint16_t *x, __mmask16 which) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, x));
}

/* Transpose four channels of 16 rows: out[c * 2 * LANES + t] = x[t * LANES + c]. Each 128-bit lane
 * has rows 4 l .. 4 l + 3, so that transposing within lanes leaves the rows in order. */
LK_ALWAYS_INLINE void transpose_4x16(const float *x, float *out) {
    __m512 row[4];
    LK_UNROLL
    for (int r = 0; r < 4; r++) {
        const float *p = x + r * LANES;
        row[r] = _mm512_broadcast_f32x4(_mm_load_ps(p));
        row[r] = _mm512_mask_broadcast_f32x4(row[r], 0x00f0, _mm_load_ps(p + 4 * LANES));
        row[r] = _mm512_mask_broadcast_f32x4(row[r], 0x0f00, _mm_load_ps(p + 8 * LANES));
        row[r] = _mm512_mask_broadcast_f32x4(row[r], 0xf000, _mm_load_ps(p + 12 * LANES));
    }
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(row[0], row[1])),
            b = _mm512_castps_pd(_mm512_unpacklo_ps(row[2], row[3]));
    __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(row[0], row[1])),
            d = _mm512_castps_pd(_mm512_unpackhi_ps(row[2], row[3]));
    _mm512_store_ps(out, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
    _mm512_store_ps(out + 2 * LANES, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    _mm512_store_ps(out + 4 * LANES, _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)));
    _mm512_store_ps(out + 6 * LANES, _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}

/* The tile as floats, channel by channel, out [d_head][LK_TILE]. The last row is repeated up to
 * LK_TILE. */
static void load_transposed(const struct lk_tile *tile, float *out) {
    int d = tile->d_head;
    _Alignas(64) float part[LK_TILE * LANES];
    for (int c = 0; c < d; c += LANES) {
        const __mmask16 which = lane_mask(d - c);
        for (int t = 0; t < LK_TILE; t++)
            _mm512_store_ps(
                part + t * LANES,
                load_f16_as_f32(
                    lk_f16_row(tile->head, d, tile->row0 + (t < tile->n ? t : tile->n - 1)) + c,
                    which));
        for (int i = 0; i < LANES && c + i < d; i += 4)
            for (int t = 0; t < LK_TILE; t += LANES)
                transpose_4x16(part + t * LANES + i, out + (c + i) * LK_TILE + t);
    }
}

static void score_tile(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride) {
    _Alignas(64) float column[LK_MAX_D_HEAD * LK_TILE];
    lk_tile_prefetch(tile, 0, (size_t)tile->n * tile->d_head * sizeof(uint16_t));
    load_transposed(tile, column);
    struct matmul m = {.a = q->q,
                       .lda = tile->d_head,
                       .b = column,
                       .n_k = tile->d_head,
                       .n_col = LK_TILE,
                       .c = s,
                       .ldc = stride};
    matmul(&m, q->n_q);
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    int d = tile->d_head;
    _Alignas(64) float row[LK_TILE * 2 * LANES];
    lk_tile_prefetch(tile, 0, (size_t)tile->n * d * sizeof(uint16_t));
    for (int c = 0; c < d; c += 2 * LANES) {
        const __mmask16 lo = lane_mask(d - c), hi = lane_mask(d - c - LANES);
        for (int t = 0; t < tile->n; t++) {
            const uint16_t *x = lk_f16_row(tile->head, d, tile->row0 + t) + c;
            _mm512_store_ps(row + t * 2 * LANES, load_f16_as_f32(x, lo));
            _mm512_store_ps(row + t * 2 * LANES + LANES, load_f16_as_f32(x + LANES, hi));
        }
        struct matmul m = {.a = p,
                           .lda = stride,
                           .b = row,
                           .n_k = tile->n,
                           .n_col = d - c,
                           .add = true,
                           .c = acc + c,
                           .ldc = d};
        matmul(&m, n_q);
    }
}

void lk_avx512_f16_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                         const struct lk_queries *q, float *s, size_t stride) {
    if (q->n_q < MIN_QUERIES) {
        lk_avx2_f16_score(kernels, rows, q, s, stride);
        return;
    }
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(&tile, q, s, stride);
    }
}

void lk_avx512_f16_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                              const float *p, size_t stride, int n_q, float *acc) {
    if (n_q < MIN_QUERIES) {
        lk_avx2_f16_accumulate(kernels, rows, p, stride, n_q, acc);
        return;
    }
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, acc);
    }
}
