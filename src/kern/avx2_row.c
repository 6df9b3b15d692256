/* rot and int8: x = scale_t * (cell - top / 2) + mean, cell a byte between 0 and top. */
#include <immintrin.h>
#include <string.h>

#include "codec/int8.h"
#include "codec/rot.h"
#include "kern/avx2.h"

/* What of a tile is not in its codes. */
struct rows {
    const uint8_t *cells;
    const int8_t  *mean;       /* [d_head], NULL without */
    float          mean_scale;
    int            top;        /* of the levels; int8 has the middle at 128, as if top were 256 */
    bool           fine;       /* codes of 5 bits and more want 16-bit queries */
    float          scale[LK_TILE];
};

static float read_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < LK_TILE; t += 16) { /* a sign bit per byte: packs keeps signs */
        __m256i half = _mm256_loadu_si256((const __m256i *)(scale + t));
        __m128i sign = _mm_packs_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        bits |= (uint32_t)_mm_movemask_epi8(sign) << t;
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* room: [LK_TILE * d_head], 32-byte aligned */
static void read_rows(struct rows *rows, const struct lk_tile *tile, enum lk_side side, uint8_t *room) {
    const struct lk_codec *codec = tile->codec;
    lk_tile_fetch(tile, 0, lk_codec_head_bytes(codec, side, tile->d_head, LK_TILE));
    rows->mean = NULL;
    if (codec->coding == LK_INT8) {
        rows->cells = tile->head;
        rows->top = 2 * LK_INT8_MID;
        rows->fine = true;
        lk_avx2_scales(lk_int8_scales(tile->head, tile->d_head), tile->n, rows->scale);
        return;
    }
    struct lk_rot_levels levels = lk_rot_levels(codec);
    rows->cells = lk_avx2_unpack(codec->bits, tile->d_head, tile->head, levels.table, room);
    rows->top = levels.top;
    rows->fine = codec->bits > 4;
    const uint16_t *scale = lk_rot_scales(codec, tile->head, tile->d_head);
    lk_avx2_scales(scale, tile->n, rows->scale);
    if (!codec->mean) return;
    rows->mean = lk_rot_mean(codec, tile->head, tile->d_head);
    rows->mean_scale = read_mean_scale(scale);
}

/* 2 * dot - top * sum, exactly: twice the products with the levels. It fits although 2 * dot may not. */
static inline __m256i twice(const int32_t *dot, __m256i top_sum) {
    return _mm256_sub_epi32(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)dot), 1), top_sum);
}

static inline __m256i top_times(int top, int32_t sum) { return _mm256_set1_epi32((int32_t)((uint32_t)top * (uint32_t)sum)); }

void lk_avx2_row_score(const struct lk_avx2_dots *dots, const struct lk_tile *tile, const struct lk_queries *q, float *s,
                        size_t stride) {
    _Alignas(32) uint8_t room[LK_TILE * LK_MAX_D_HEAD];
    int32_t dot[LK_AVX2_QUERIES][LK_TILE], mean[LK_AVX2_QUERIES] = {0};
    struct rows rows;
    read_rows(&rows, tile, LK_K, room);
    int d = tile->d_head, pad = lk_queries_pad(d);
    for (int i0 = 0; i0 < q->n_q; i0 += LK_AVX2_QUERIES) {
        int n = q->n_q - i0 < LK_AVX2_QUERIES ? q->n_q - i0 : LK_AVX2_QUERIES;
        if (rows.fine) dots->k16(rows.cells, d, q->q16 + (size_t)i0 * pad, pad, n, dot);
        else dots->k8(rows.cells, d, rows.top, q->q8 + (size_t)i0 * pad, pad, n, dot);
        if (rows.mean) lk_avx2_dot_mean(rows.mean, d, q->q16 + (size_t)i0 * pad, pad, n, mean);
        for (int j = 0; j < n; j++) {
            int i = i0 + j;
            __m256 half = _mm256_set1_ps(0.5f * (rows.fine ? q->scale16 : q->scale8)[i]);
            __m256i top_sum = top_times(rows.top, (rows.fine ? q->sum16 : q->sum8)[i]);
            __m256 offset = _mm256_set1_ps(rows.mean ? rows.mean_scale * q->scale16[i] * (float)mean[j] : 0);
            for (int t = 0; t < LK_TILE; t += 8) {
                __m256 scale = _mm256_mul_ps(half, _mm256_loadu_ps(rows.scale + t));
                __m256 level = _mm256_cvtepi32_ps(twice(dot[j] + t, top_sum));
                _mm256_storeu_ps(s + i * stride + t, _mm256_fmadd_ps(level, scale, offset));
            }
        }
    }
}

/* Sum of p [LK_TILE]. */
static float sum_of(const float *p) {
    static const float ones[LK_TILE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    return lk_avx2_dot(p, ones, LK_TILE);
}

/* acc [d] += weight * mean */
static void add_mean(const struct rows *rows, int d, float weight, float *acc) {
    __m256 step = _mm256_set1_ps(weight * rows->mean_scale);
    for (int c = 0; c < d; c += 8) {
        __m256i code = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(rows->mean + c)));
        _mm256_storeu_ps(acc + c, _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), step, _mm256_loadu_ps(acc + c)));
    }
}

void lk_avx2_row_accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile, const float *p, size_t stride,
                             int n_q, float *acc) {
    _Alignas(32) uint8_t room[LK_TILE * LK_MAX_D_HEAD];
    int16_t p16[LK_AVX2_QUERIES][LK_TILE];
    int32_t sum[LK_AVX2_QUERIES], dot[LK_AVX2_QUERIES][LK_MAX_D_HEAD];
    float step[LK_AVX2_QUERIES];
    struct rows rows;
    read_rows(&rows, tile, LK_V, room);
    int d = tile->d_head;
    for (int i0 = 0; i0 < n_q; i0 += LK_AVX2_QUERIES) {
        int n = n_q - i0 < LK_AVX2_QUERIES ? n_q - i0 : LK_AVX2_QUERIES;
        for (int j = 0; j < n; j++) step[j] = lk_avx2_weigh(p + (i0 + j) * stride, rows.scale, p16[j], &sum[j]);
        dots->v16(rows.cells, d, p16, n, dot);
        for (int j = 0; j < n; j++) {
            float *out = acc + (size_t)(i0 + j) * d;
            __m256 half = _mm256_set1_ps(0.5f * step[j]);
            __m256i top_sum = top_times(rows.top, sum[j]);
            for (int c = 0; c < d; c += 8) {
                __m256 level = _mm256_cvtepi32_ps(twice(dot[j] + c, top_sum));
                _mm256_storeu_ps(out + c, _mm256_fmadd_ps(level, half, _mm256_loadu_ps(out + c)));
            }
            if (rows.mean) add_mean(&rows, d, sum_of(p + (i0 + j) * stride), out);
        }
    }
}
