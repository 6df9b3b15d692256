/* rot and int8 for AVX2 and AVX-VNNI: a tile is unpacked to bytes, which all queries share. */
#include "kernels/avx2_per_token.h"

/* A tile unpacked to bytes. */
struct tile_cells {
    struct lk_avx2_params params;
    const uint8_t *byte;
    int top;   /* level = byte - top / 2; int8 has its middle at 128, as if top were 256 */
    bool fine; /* requires 16-bit queries */
};

/* buf: [LK_TILE * d_head], 32-byte aligned */
static void load_cells(struct tile_cells *cells, const struct lk_tile *tile, uint8_t *buf) {
    const struct lk_codec *codec = tile->codec;
    prefetch_tile(tile);
    load_params(&cells->params, tile);
    if (codec->coding == LK_INT8) {
        cells->byte = tile->head;
        cells->top = 2 * LK_INT8_MID;
        cells->fine = true;
        return;
    }
    struct lk_rot_codebook levels = lk_rot_codebook(codec);
    cells->top = levels.top;
    cells->fine = codec->bits > LK_AVX2_MAX_BITS_Q8;
    if (codec->trellis)
        cells->byte =
            lk_avx2_unpack_trellis(codec->bits, tile->d_head, tile->head, levels.table, buf);
    else
        cells->byte = lk_avx2_unpack(codec->bits, tile->d_head, tile->head, levels.table, buf);
}

/* 2 * dot - top * sum, which is twice the dot product with the levels, exactly. The difference fits
 * into 32 bits although 2 * dot may not. */
static inline __m256i doubled_dot(const int32_t *dot, __m256i top_sum) {
    return _mm256_sub_epi32(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)dot), 1),
                            top_sum);
}

static inline __m256i set1_top_sum(int top, int32_t sum) {
    return _mm256_set1_epi32((int32_t)((uint32_t)top * (uint32_t)sum));
}

static void score_tile(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                       const struct lk_queries *q, float *s, size_t stride) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int32_t dot[LK_AVX2_QUERIES][LK_TILE];
    float offset[LK_AVX2_QUERIES] = {0};
    struct tile_cells cells;
    load_cells(&cells, tile, buf);
    int d = tile->d_head, pad = lk_queries_pad(d);
    for (int i0 = 0; i0 < q->n_q; i0 += LK_AVX2_QUERIES) {
        int n = q->n_q - i0 < LK_AVX2_QUERIES ? q->n_q - i0 : LK_AVX2_QUERIES;
        if (cells.fine)
            dots->k16(cells.byte, d, q->q16 + (size_t)i0 * pad, pad, n, dot);
        else
            dots->k8(cells.byte, d, q->q8 + (size_t)i0 * pad, pad, n, dot);
        if (cells.params.mean.code) dot_mean_any(&cells.params.mean, q, i0, n, offset);
        for (int j = 0; j < n; j++) {
            int i = i0 + j;
            __m256 half = _mm256_set1_ps(0.5f * (cells.fine ? q->scale16 : q->scale8)[i]);
            __m256i top_sum = set1_top_sum(cells.top, (cells.fine ? q->sum16 : q->sum8)[i]);
            __m256 plus = _mm256_set1_ps(offset[j]);
            for (int t = 0; t < LK_TILE; t += 8) {
                __m256 scale = _mm256_mul_ps(half, _mm256_loadu_ps(cells.params.scale + t));
                __m256 level = _mm256_cvtepi32_ps(doubled_dot(dot[j] + t, top_sum));
                _mm256_storeu_ps(s + i * stride + t, _mm256_fmadd_ps(level, scale, plus));
            }
        }
    }
}

static void accumulate_tile(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                            const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int16_t p16[LK_AVX2_QUERIES][LK_TILE];
    int32_t sum[LK_AVX2_QUERIES], dot[LK_AVX2_QUERIES][LK_MAX_D_HEAD];
    float step[LK_AVX2_QUERIES];
    struct tile_cells cells;
    load_cells(&cells, tile, buf);
    int d = tile->d_head;
    for (int i0 = 0; i0 < n_q; i0 += LK_AVX2_QUERIES) {
        int n = n_q - i0 < LK_AVX2_QUERIES ? n_q - i0 : LK_AVX2_QUERIES;
        for (int j = 0; j < n; j++)
            step[j] = lk_avx2_quantize_weights(p + (i0 + j) * stride, cells.params.scale, p16[j],
                                               &sum[j]);
        dots->v16(cells.byte, d, p16, n, dot);
        for (int j = 0; j < n; j++) {
            float *out = acc + (size_t)(i0 + j) * d;
            __m256 half = _mm256_set1_ps(0.5f * step[j]);
            __m256i top_sum = set1_top_sum(cells.top, sum[j]);
            for (int c = 0; c < d; c += 8) {
                __m256 level = _mm256_cvtepi32_ps(doubled_dot(dot[j] + c, top_sum));
                _mm256_storeu_ps(out + c, _mm256_fmadd_ps(level, half, _mm256_loadu_ps(out + c)));
            }
            if (cells.params.mean.code)
                add_mean(&cells.params.mean, d, sum_tile_f32(p + (i0 + j) * stride), out);
        }
    }
}

void lk_avx2_per_token_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                             const struct lk_queries *q, float *s, size_t stride) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(kernels->dots, &tile, q, s, stride);
    }
}

void lk_avx2_per_token_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                                  const float *p, size_t stride, int n_q, float *acc) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(kernels->dots, &tile, p, stride, n_q, acc);
    }
}

/* ---- scores of whole tiles by their means (kernels.h: score_tiles) ---- */

/* Mean of the squared scales of a tile's rows. */
LK_ALWAYS_INLINE float mean_square(const uint16_t *scale) {
    __m256 sum = _mm256_setzero_ps();
    LK_UNROLL
    for (int t = 0; t < LK_TILE; t += 8) {
        __m256 x = load_abs_f16x8(scale + t);
        sum = _mm256_fmadd_ps(x, x, sum);
    }
    return hsum_f32x8(sum) * (1.0f / LK_TILE);
}

void lk_avx2_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride) {
    int n_tile = lk_rows_n_tile(rows), d = rows->d_head;
    for (int t = 0; t < n_tile; t++) {
        struct lk_tile tile = lk_rows_tile(rows, t);
        const uint16_t *scale = lk_rot_scales(tile.codec, tile.head, d);
        struct lk_avx2_mean mean = load_mean(&tile, scale);
        float square = mean_square(scale), sum[LK_AVX2_QUERIES];
        for (int i = 0; i < q->n_q; i += LK_AVX2_QUERIES) {
            int n = q->n_q - i < LK_AVX2_QUERIES ? q->n_q - i : LK_AVX2_QUERIES;
            dot_mean_any(&mean, q, i, n, sum);
            for (int j = i; j < i + n; j++) s[j * stride + t] = sum[j - i] + spread[j] * square;
        }
    }
}
