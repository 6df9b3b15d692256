/* f16 rows for many queries with AVX-512: blocked matrix products over a tile that is converted
 * once, to floats or, for the exact rows of a prompt, to 16-bit fixed point. Few queries do not pay
 * for the conversion to floats and use avx2_f16.c. */
#include "codec/f16.h"
#include "kernels/avx512.h"
#include "kernels/avx512_dot.h"

#include <immintrin.h>
#include <string.h>

enum {
    QUERIES = 12, /* 24 sums stay in registers */
    MIN_QUERIES = 6,
    LANES = 16,
    MAX_FIXED = 128,   /* queries that share a conversion to fixed point */
    FIXED_WIDTH = 256, /* channels of the widest head in fixed point */
    PAIRS = 32,        /* pairs of numbers whose products are summed up as integers */
};

/* Largest magnitude in fixed point: 2 * PAIRS * 5792^2 < 2^31. */
static const float fixed_max = 5792;

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

/* ---- fixed point ----
 *
 * VPDPWSSD multiplies twice as many numbers as a product of floats. Each row gets a step, its
 * largest magnitude / fixed_max, so that its error is the one of rounding it to 13.5 bits of its
 * maximum; f16 itself rounds each number to 11 bits. Numbers of a pair are neighbors: channels of
 * K, tokens of V. A row with an infinity or a NaN has codes of 0 and a step that makes its results
 * NaN. */

/* Queries [segment of 2 * PAIRS channels][query][pair], and what is added to their scores. */
struct fixed_queries {
    _Alignas(64) int32_t pair[FIXED_WIDTH / 2 / PAIRS][MAX_FIXED][PAIRS];
    float step[MAX_FIXED], offset[MAX_FIXED];
};

/* A tile of K, tokens as columns. */
struct fixed_keys {
    _Alignas(64) int32_t pair[FIXED_WIDTH / 2][LK_TILE];
    _Alignas(64) float step[LK_TILE];
};

/* Weights of 2 * PAIRS tokens, multiplied with the steps of their values, and 2 * LANES channels of
 * these. Codes do not depend on tokens whose weight is 0: those after the query. */
struct fixed_weights {
    _Alignas(64) int32_t pair[MAX_FIXED][PAIRS];
    float step[MAX_FIXED];
};
struct fixed_values {
    _Alignas(64) int32_t pair[PAIRS][2 * LANES];
    _Alignas(64) float step[2 * PAIRS], scale[2 * PAIRS]; /* of the tokens; scale = 1 / step */
};

/* Bits of magnitudes. As integers they are in the order of the numbers, and NaN is the largest. */
LK_ALWAYS_INLINE __m512i magnitude(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
static const int32_t least_magnitude = 0x0da24260; /* 1e-30f: the step of zeros is not zero */

/* Numbers as integers, the next row's in the upper halves. */
LK_ALWAYS_INLINE __m512i to_pairs(__m512 x, __m512 next) {
    __m512i low = _mm512_cvtps_epi32(x), high = _mm512_cvtps_epi32(next);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

/* sum[i] += the products of row i of a with the columns of b: n_pair pairs, n rows. */
LK_ALWAYS_INLINE void multiply_pairs(const int32_t (*a)[PAIRS], const int32_t *b, int n_pair, int n,
                                     __m512i sum[QUERIES][2]) {
    LK_UNROLL
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int k = 0; k < n_pair; k++, b += 2 * LANES) {
        __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + LANES);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i x = _mm512_set1_epi32(a[i][k]);
            sum[i][0] = dpwssd_i32x16(sum[i][0], x, b0);
            sum[i][1] = dpwssd_i32x16(sum[i][1], x, b1);
        }
    }
}

/* The first row of a run, with 0 for what is not finite. It is taken from all keys before they are
 * quantized: a channel with a large bias would make the steps of all others large. Every query that
 * attends to the run attends to this row. So results do not depend on rows after the query. */
static void first_row(const struct lk_tile *tile, float *out) {
    int d = tile->d_head;
    const uint16_t *row = lk_f16_row(tile->head, d, tile->row0);
    for (int c = 0; c < d; c += LANES) {
        __m512 x = load_f16_as_f32(row + c, lane_mask(d - c));
        __mmask16 finite = _mm512_cmplt_epu32_mask(magnitude(x), _mm512_set1_epi32(0x7f800000));
        _mm512_store_ps(out + c, _mm512_maskz_mov_ps(finite, x));
    }
}

/* n <= MAX_FIXED queries. offset: their products with `first`. */
static void fix_queries(const float *q, int n, int d, const float *first,
                        struct fixed_queries *out) {
    for (int i = 0; i < n; i++, q += d) {
        __m512i most = _mm512_set1_epi32(least_magnitude);
        __m512 dot = _mm512_setzero_ps();
        for (int c = 0; c < d; c += LANES) {
            __m512 x = _mm512_maskz_loadu_ps(lane_mask(d - c), q + c);
            most = _mm512_max_epu32(most, magnitude(x));
            dot = _mm512_fmadd_ps(x, _mm512_load_ps(first + c), dot);
        }
        __m512 max = _mm512_castsi512_ps(_mm512_set1_epi32((int)_mm512_reduce_max_epu32(most)));
        __m512 scale = _mm512_div_ps(_mm512_set1_ps(fixed_max), max);
        for (int c = 0; c < (d + 2 * PAIRS - 1) / (2 * PAIRS) * 2 * PAIRS; c += LANES) {
            __m512 x = _mm512_maskz_loadu_ps(lane_mask(d - c), q + c);
            __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, scale));
            _mm256_store_si256(
                (__m256i *)((int16_t *)out->pair[c / (2 * PAIRS)][i] + c % (2 * PAIRS)),
                _mm512_cvtepi32_epi16(code));
        }
        out->step[i] = _mm512_cvtss_f32(max) / fixed_max;
        out->offset[i] = _mm512_reduce_add_ps(dot);
    }
}

/* A tile's keys minus `first`. */
static void fix_keys(const struct lk_tile *tile, const float *first, struct fixed_keys *out) {
    _Alignas(64) float column[(FIXED_WIDTH + 1) * LK_TILE];
    int d = tile->d_head;
    load_transposed(tile, column);
    __m512i most[2] = {_mm512_set1_epi32(least_magnitude), _mm512_set1_epi32(least_magnitude)};
    for (int c = 0; c < d; c++) LK_UNROLL
    for (int g = 0; g < 2; g++) {
        float *x = column + c * LK_TILE + g * LANES;
        __m512 centered = _mm512_sub_ps(_mm512_load_ps(x), _mm512_set1_ps(first[c]));
        most[g] = _mm512_max_epu32(most[g], magnitude(centered));
        _mm512_store_ps(x, centered);
    }
    if (d % 2) memset(column + d * LK_TILE, 0, LK_TILE * sizeof *column);
    for (int g = 0; g < 2; g++) {
        __m512 max = _mm512_castsi512_ps(most[g]);
        __m512 scale = _mm512_div_ps(_mm512_set1_ps(fixed_max), max);
        for (int c = 0; c < d; c += 2) {
            const float *x = column + c * LK_TILE + g * LANES;
            _mm512_store_si512(out->pair[c / 2] + g * LANES,
                               to_pairs(_mm512_mul_ps(_mm512_load_ps(x), scale),
                                        _mm512_mul_ps(_mm512_load_ps(x + LK_TILE), scale)));
        }
        _mm512_store_ps(out->step + g * LANES, _mm512_div_ps(max, _mm512_set1_ps(fixed_max)));
    }
}

/* Scores of queries [i0, i0 + n) with a tile of d channels. */
LK_ALWAYS_INLINE void fixed_score_rows(const struct fixed_queries *q, const struct fixed_keys *k,
                                       int d, int i0, int n, float *s, size_t stride) {
    __m512 step0 = _mm512_load_ps(k->step), step1 = _mm512_load_ps(k->step + LANES);
    for (int c = 0; c < d; c += 2 * PAIRS) {
        __m512i sum[QUERIES][2];
        int n_pair = d - c < 2 * PAIRS ? (d - c + 1) / 2 : PAIRS;
        multiply_pairs(q->pair[c / (2 * PAIRS)] + i0, k->pair[c / 2], n_pair, n, sum);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512 step = _mm512_set1_ps(q->step[i0 + i]),
                   offset = _mm512_set1_ps(q->offset[i0 + i]);
            float *out = s + (i0 + i) * stride;
            __m512 from0 = c ? _mm512_loadu_ps(out) : offset,
                   from1 = c ? _mm512_loadu_ps(out + LANES) : offset;
            __m512 x0 = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][0]), step0),
                   x1 = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][1]), step1);
            _mm512_storeu_ps(out, _mm512_fmadd_ps(x0, step, from0));
            _mm512_storeu_ps(out + LANES, _mm512_fmadd_ps(x1, step, from1));
        }
    }
}

static void fixed_score(const struct lk_rows *rows, const float *q, int n_q, float *s,
                        size_t stride) {
    struct fixed_queries queries;
    struct fixed_keys keys;
    _Alignas(64) float first[FIXED_WIDTH];
    int d = rows->d_head;
    for (int b = 0; b < lk_rows_n_tile(rows); b++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, b);
        lk_tile_prefetch(&tile, 0, (size_t)tile.n * d * sizeof(uint16_t));
        if (b == 0) {
            first_row(&tile, first);
            fix_queries(q, n_q, d, first, &queries);
        }
        fix_keys(&tile, first, &keys);
        int i = 0;
        for (; i + QUERIES <= n_q; i += QUERIES)
            fixed_score_rows(&queries, &keys, d, i, QUERIES, s, stride);
        for (; i + 4 <= n_q; i += 4) fixed_score_rows(&queries, &keys, d, i, 4, s, stride);
        for (; i < n_q; i++) fixed_score_rows(&queries, &keys, d, i, 1, s, stride);
    }
}

/* Weights of n_group groups of LANES tokens, n <= MAX_FIXED queries. Rounding would turn many small
 * weights next to a large one to 0, so they are rounded up or down depending on the token's place,
 * right on average. */
static void fix_weights(const float *p, size_t stride, int n, int n_group,
                        const struct fixed_values *v, struct fixed_weights *out) {
    /* The first 16 places of van der Corput's sequence, for each of four groups. */
    static const float place[LANES] = {0,       0.5f,    0.25f,   0.75f,   0.125f,  0.625f,
                                       0.375f,  0.875f,  0.0625f, 0.5625f, 0.3125f, 0.8125f,
                                       0.1875f, 0.6875f, 0.4375f, 0.9375f},
                       group[4] = {0.0078125f, 0.0390625f, 0.0234375f, 0.0546875f};
    for (int i = 0; i < n; i++, p += stride) {
        __m512 x[4];
        __m512i most = _mm512_set1_epi32(least_magnitude);
        for (int g = 0; g < 4; g++) {
            x[g] = _mm512_setzero_ps();
            if (g < n_group)
                x[g] = _mm512_mul_ps(_mm512_loadu_ps(p + g * LANES),
                                     _mm512_load_ps(v->step + g * LANES));
            most = _mm512_max_epu32(most, magnitude(x[g]));
        }
        __m512 max = _mm512_castsi512_ps(_mm512_set1_epi32((int)_mm512_reduce_max_epu32(most)));
        __m512 scale = _mm512_div_ps(_mm512_set1_ps(fixed_max), max);
        for (int g = 0; g < 4; g++) {
            __m512 round = _mm512_add_ps(_mm512_loadu_ps(place), _mm512_set1_ps(group[g]));
            __m512i code = _mm512_cvttps_epi32(_mm512_fmadd_ps(x[g], scale, round));
            _mm256_store_si256((__m256i *)((int16_t *)out->pair[i] + g * LANES),
                               _mm512_cvtepi32_epi16(code));
        }
        out->step[i] = _mm512_cvtss_f32(max) / fixed_max;
    }
}

/* Row t of one or two tiles, or NULL after the last one. */
LK_ALWAYS_INLINE const uint16_t *row_of(const struct lk_tile *tile, int t) {
    const struct lk_tile *of = tile + t / LK_TILE;
    int row = t % LK_TILE;
    return row < of->n ? lk_f16_row(of->head, of->d_head, of->row0 + row) : NULL;
}

/* Steps of the tokens of one or two tiles. */
static void value_steps(const struct lk_tile *tile, int n_tile, struct fixed_values *out) {
    for (int t = 0; t < n_tile * LK_TILE; t++) {
        const uint16_t *x = row_of(tile, t);
        __m512i most = _mm512_set1_epi32(least_magnitude);
        for (int c = 0; x && c < tile->d_head; c += LANES)
            most = _mm512_max_epu32(most,
                                    magnitude(load_f16_as_f32(x + c, lane_mask(tile->d_head - c))));
        __m512i max = _mm512_set1_epi32((int)_mm512_reduce_max_epu32(most));
        float largest = _mm512_cvtss_f32(_mm512_castsi512_ps(max));
        out->step[t] = largest / fixed_max;
        out->scale[t] = fixed_max / largest;
    }
}

/* Channels [c, c + 2 * LANES) of these tokens. Those after the last are 0. */
static void fix_values(const struct lk_tile *tile, int n_tile, int c, struct fixed_values *out) {
    int d = tile->d_head;
    for (int t = 0; t < n_tile * LK_TILE; t += 2) {
        const uint16_t *row[2] = {row_of(tile, t), row_of(tile, t + 1)};
        for (int g = 0; g < 2; g++) {
            __m512 x[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            for (int i = 0; i < 2; i++)
                if (row[i])
                    x[i] = _mm512_mul_ps(
                        load_f16_as_f32(row[i] + c + g * LANES, lane_mask(d - c - g * LANES)),
                        _mm512_set1_ps(out->scale[t + i]));
            _mm512_store_si512(out->pair[t / 2] + g * LANES, to_pairs(x[0], x[1]));
        }
    }
}

/* acc [n][d], from column c on: sums of queries [i0, i0 + n). */
LK_ALWAYS_INLINE void fixed_sum_rows(const struct fixed_weights *p, const struct fixed_values *v,
                                     int n_pair, int i0, int n, int d, int c, float *acc) {
    const __mmask16 lo = lane_mask(d - c), hi = lane_mask(d - c - LANES);
    __m512i sum[QUERIES][2];
    multiply_pairs(p->pair + i0, v->pair[0], n_pair, n, sum);
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        float *out = acc + (size_t)(i0 + i) * d + c;
        __m512 step = _mm512_set1_ps(p->step[i0 + i]);
        __m512 x0 = _mm512_cvtepi32_ps(sum[i][0]), x1 = _mm512_cvtepi32_ps(sum[i][1]);
        _mm512_mask_storeu_ps(out, lo, _mm512_fmadd_ps(x0, step, _mm512_maskz_loadu_ps(lo, out)));
        _mm512_mask_storeu_ps(out + LANES, hi,
                              _mm512_fmadd_ps(x1, step, _mm512_maskz_loadu_ps(hi, out + LANES)));
    }
}

enum { SUM_TILES = 2 * PAIRS / LK_TILE }; /* tiles whose products are summed up as integers */

/* Up to SUM_TILES tiles from b on; they are fetched while the ones before are worked on. Returns
 * their number. */
static int fetch_tiles(const struct lk_rows *rows, int b, struct lk_tile *out) {
    enum { LINE = 64 };
    int left = lk_rows_n_tile(rows) - b, n = left < SUM_TILES ? left : SUM_TILES;
    for (int t = 0; t < n; t++) {
        out[t] = lk_rows_tile(rows, b + t);
        const char *first = (const char *)lk_f16_row(out[t].head, rows->d_head, out[t].row0);
        for (size_t at = 0; at < (size_t)out[t].n * rows->d_head * sizeof(uint16_t); at += LINE)
            __builtin_prefetch(first + at, 0, 3);
    }
    return n;
}

static void fixed_accumulate(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc) {
    struct fixed_weights weights;
    struct fixed_values values;
    struct lk_tile tile[2][SUM_TILES];
    int d = rows->d_head, n_tile = fetch_tiles(rows, 0, tile[0]), n_next;
    for (int b = 0; n_tile > 0; b++, n_tile = n_next, p += SUM_TILES * LK_TILE) {
        n_next = fetch_tiles(rows, (b + 1) * SUM_TILES, tile[(b + 1) % 2]);
        value_steps(tile[b % 2], n_tile, &values);
        fix_weights(p, stride, n_q, n_tile * LK_TILE / LANES, &values, &weights);
        for (int c = 0; c < d; c += 2 * LANES) {
            int i = 0, n_pair = n_tile * LK_TILE / 2;
            fix_values(tile[b % 2], n_tile, c, &values);
            for (; i + QUERIES <= n_q; i += QUERIES)
                fixed_sum_rows(&weights, &values, n_pair, i, QUERIES, d, c, acc);
            for (; i + 4 <= n_q; i += 4) fixed_sum_rows(&weights, &values, n_pair, i, 4, d, c, acc);
            for (; i < n_q; i++) fixed_sum_rows(&weights, &values, n_pair, i, 1, d, c, acc);
        }
    }
}

/* ---- tables ---- */

/* A prompt's rows get fixed point for any number of queries, so that its bits do not depend on how
 * it is divided. */
static bool is_fixed(const struct lk_rows *rows) {
    return rows->aligned && rows->d_head <= FIXED_WIDTH;
}

void lk_avx512_f16_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                         const struct lk_queries *q, float *s, size_t stride) {
    if (is_fixed(rows)) {
        for (int i = 0; i < q->n_q; i += MAX_FIXED)
            fixed_score(rows, q->q + (size_t)i * rows->d_head,
                        q->n_q - i < MAX_FIXED ? q->n_q - i : MAX_FIXED, s + i * stride, stride);
        return;
    }
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
    if (is_fixed(rows)) {
        for (int i = 0; i < n_q; i += MAX_FIXED)
            fixed_accumulate(rows, p + i * stride, stride,
                             n_q - i < MAX_FIXED ? n_q - i : MAX_FIXED,
                             acc + (size_t)i * rows->d_head);
        return;
    }
    if (n_q < MIN_QUERIES) {
        lk_avx2_f16_accumulate(kernels, rows, p, stride, n_q, acc);
        return;
    }
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, acc);
    }
}
