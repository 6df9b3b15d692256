/* KIVI for AVX-512: x = scale * code + min. The scale and the minimum of a channel (K) are
 * multiplied into the query, those of a token (V) into its weight. Codes are then only multiplied
 * with integers. */
#include "codec/kivi.h"
#include "kernels/avx512_dot.h"

static inline __mmask16 lane_mask(int c, int d) { return d - c >= 16 ? 0xffff : 0x00ff; }

/* ---- K ---- */

/* Queries times the channels' scales, quantized to two planes of bytes. */
struct scaled_queries {
    _Alignas(64) int8_t planes[LK_AVX512_QUERIES][2][LK_MAX_D_HEAD];
    float step[LK_AVX512_QUERIES];   /* q * scale ~ step * (256 high + low) */
    float offset[LK_AVX512_QUERIES]; /* <q, min> */
};

/* half: [2][d] scales and minima. 16 bits, because a few channels of K have most of the range. */
static void quantize_query(const float *q, const uint16_t *half, int d, int i,
                           struct scaled_queries *out) {
    __m512 product[LK_MAX_D_HEAD / 16], max = _mm512_setzero_ps(), offset = max;
    for (int c = 0; c < d; c += 16) {
        __mmask16 in = lane_mask(c, d);
        __m512 x = _mm512_maskz_loadu_ps(in, q + c);
        __m512 scale = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(in, half + c));
        __m512 min = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(in, half + d + c));
        product[c / 16] = _mm512_mul_ps(x, scale);
        max = _mm512_max_ps(max, _mm512_abs_ps(product[c / 16]));
        offset = _mm512_fmadd_ps(x, min, offset);
    }
    float step = _mm512_reduce_max_ps(max) / lk_max_x16_nibbles(d);
    __m512 inverse = _mm512_set1_ps(step > LK_MIN_STEP ? 1 / step : 0);
    for (int c = 0; c < d; c += 16) {
        __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(product[c / 16], inverse));
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8);
        _mm_storeu_si128((__m128i *)(out->planes[i][0] + c), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)(out->planes[i][1] + c), _mm512_cvtepi32_epi8(x));
    }
    out->step[i] = step;
    out->offset[i] = _mm512_reduce_add_ps(offset);
}

LK_ALWAYS_INLINE void score_queries(const uint8_t *cells, enum lk_avx512_order order,
                                    const struct scaled_queries *q, int d, int n, float *s,
                                    size_t stride) {
    struct query_sums sum = dot_k_fine(cells, d, q->planes[0][0], LK_MAX_D_HEAD, n);
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        struct token_sums dot = join_sums(sum.of[i], order);
        __m512 step = _mm512_set1_ps(q->step[i]), offset = _mm512_set1_ps(q->offset[i]);
        _mm512_storeu_ps(s + i * stride,
                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot.first), step, offset));
        _mm512_storeu_ps(s + i * stride + LK_AVX512_ROWS,
                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot.last), step, offset));
    }
}

static void score_tile(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile,
                       const struct lk_queries *q, float *s, size_t stride) {
    _Alignas(64) uint8_t buf[LK_AVX512_CELLS];
    struct scaled_queries scaled;
    enum lk_avx512_order order;
    int d = tile->d_head, bits = tile->codec->bits;
    lk_tile_prefetch(tile, 0, lk_bitplanes_bytes(bits, d));
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_K, tile->head, d);
    struct lk_avx512_levels levels;
    unpack->levels(bits, NULL, &levels);
    const uint8_t *cells = unpack->k(bits, d, lk_kivi_tile(tile->codec, tile->head, d, tile->row0),
                                     &levels, buf, &order);
    for (int i = 0; i < q->n_q; i += LK_AVX512_QUERIES, s += LK_AVX512_QUERIES * stride) {
        int n = q->n_q - i < LK_AVX512_QUERIES ? q->n_q - i : LK_AVX512_QUERIES;
        for (int j = 0; j < n; j++) quantize_query(q->q + (size_t)(i + j) * d, half, d, j, &scaled);
        if (n == 4) score_queries(cells, order, &scaled, d, 4, s, stride);
        if (n == 3) score_queries(cells, order, &scaled, d, 3, s, stride);
        if (n == 2) score_queries(cells, order, &scaled, d, 2, s, stride);
        if (n == 1) score_queries(cells, order, &scaled, d, 1, s, stride);
    }
}

/* ---- V ---- */

/* Group g of channels, for n <= LK_AVX512_BATCH queries. */
static void accumulate_group(const struct lk_tile *tile, const uint8_t *cells, int g,
                             const float *p, size_t stride, int n, float *acc) {
    struct lk_avx512_weights weights;
    float offset[LK_AVX512_BATCH];
    __m512 scale[2], min[2];
    int d = tile->d_head, c = g * tile->codec->group;
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_V, tile->head, d) + g * LK_TILE;
    lk_avx512_load_scales(half, tile->n, scale);
    lk_avx512_quantize_weights(p, stride, n, scale, true, &weights);
    half += lk_kivi_groups(tile->codec, LK_V, d);
    __mmask32 first = (__mmask32)(((uint64_t)1 << tile->n) - 1);
    min[0] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)first, half));
    min[1] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)(first >> 16), half + 16));
    for (int i = 0; i < n; i++) {
        __m512 sum = _mm512_mul_ps(min[0], _mm512_loadu_ps(p + i * stride));
        sum = _mm512_fmadd_ps(min[1], _mm512_loadu_ps(p + i * stride + LK_AVX512_ROWS), sum);
        offset[i] = _mm512_reduce_add_ps(sum);
    }
    struct weighted_cells weighted = {cells, &weights, true, offset, d, acc};
    accumulate_queries(weighted, n, c, c + tile->codec->group);
}

static void accumulate_tile(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile,
                            const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(64) uint8_t cells[LK_AVX512_CELLS];
    int d = tile->d_head;
    lk_tile_prefetch(tile, 0, lk_codec_head_bytes(tile->codec, LK_V, d, LK_TILE));
    struct lk_avx512_levels levels;
    unpack->levels(tile->codec->bits, NULL, &levels);
    unpack->v(tile->codec->bits, d, tile->head, &levels, 0, d, cells, LK_AVX512_ROWS * LK_TILE);
    for (int i = 0; i < n_q; i += LK_AVX512_BATCH) {
        int n = n_q - i < LK_AVX512_BATCH ? n_q - i : LK_AVX512_BATCH;
        for (int g = 0; g < d / tile->codec->group; g++)
            accumulate_group(tile, cells, g, p + i * stride, stride, n, acc + (size_t)i * d);
    }
}

void lk_avx512_kivi_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                          const struct lk_queries *q, float *s, size_t stride) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(kernels->unpack, &tile, q, s, stride);
    }
}

void lk_avx512_kivi_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                               const float *p, size_t stride, int n_q, float *acc) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(kernels->unpack, &tile, p, stride, n_q, acc);
    }
}
