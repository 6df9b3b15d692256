/* Tables of the AVX-512, AVX512-VBMI and AMX kernels: dispatch by codec and number of queries, and
 * softmax. */
#include "kernels/avx512_dot.h"
#include "kernels/exp2.h"

#include <math.h>

static void score_rows(const struct lk_avx512_unpack *unpack, const struct lk_rows *rows,
                       const struct lk_queries *q, float *s, size_t stride) {
    if (lk_is_per_token(rows->codec)) {
        lk_avx512_per_token_score(unpack, rows, q, s, stride);
        return;
    }
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_avx512_f16_score(&tile, q, s, stride);
        else
            lk_avx512_kivi_score(unpack, &tile, q, s, stride);
    }
}

static void accumulate_rows(const struct lk_avx512_unpack *unpack, const struct lk_rows *rows,
                            const float *p, size_t stride, int n_q, float *acc) {
    if (lk_is_per_token(rows->codec)) {
        lk_avx512_per_token_accumulate(unpack, rows, p, stride, n_q, acc);
        return;
    }
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_avx512_f16_accumulate(&tile, p, stride, n_q, acc);
        else
            lk_avx512_kivi_accumulate(unpack, &tile, p, stride, n_q, acc);
    }
}

/* Each table's score and accumulate: codecs without zero points, and the wrapper that adds them. */

static void plain_score_avx512(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                               size_t stride) {
    if (lk_avx512_is_decode(rows->codec, q->n_q))
        lk_avx512_decode_score(rows, q, s, stride);
    else
        score_rows(&lk_avx512_unpack, rows, q, s, stride);
}

static void plain_accumulate_avx512(const struct lk_rows *rows, const float *p, size_t stride,
                                    int n_q, float *acc) {
    if (lk_avx512_is_decode(rows->codec, n_q))
        lk_avx512_decode_accumulate(rows, p, stride, n_q, acc);
    else
        accumulate_rows(&lk_avx512_unpack, rows, p, stride, n_q, acc);
}

static void plain_score_avx512vbmi(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                                   size_t stride) {
    if (lk_avx512_is_decode(rows->codec, q->n_q))
        lk_avx512vbmi_decode_score(rows, q, s, stride);
    else
        score_rows(&lk_avx512vbmi_unpack, rows, q, s, stride);
}

static void plain_accumulate_avx512vbmi(const struct lk_rows *rows, const float *p, size_t stride,
                                        int n_q, float *acc) {
    if (lk_avx512_is_decode(rows->codec, n_q))
        lk_avx512vbmi_decode_accumulate(rows, p, stride, n_q, acc);
    else
        accumulate_rows(&lk_avx512vbmi_unpack, rows, p, stride, n_q, acc);
}

/* AMX pays only if enough queries fill its registers of 16 rows. */
static void plain_score_amx(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                            size_t stride) {
    if (lk_is_per_token(rows->codec) && q->n_q > LK_AVX512_QUERIES)
        lk_avx512_amx_score(rows, q, s, stride);
    else
        plain_score_avx512vbmi(rows, q, s, stride);
}

static void plain_accumulate_amx(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                                 float *acc) {
    if (lk_is_per_token(rows->codec) && n_q > LK_AVX512_QUERIES)
        lk_avx512_amx_accumulate(rows, p, stride, n_q, acc);
    else
        plain_accumulate_avx512vbmi(rows, p, stride, n_q, acc);
}

typedef void score_fn(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                      size_t stride);
typedef void accumulate_fn(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                           float *acc);

LK_ALWAYS_INLINE void score_any(const struct lk_kernels *table, score_fn *plain,
                                const struct lk_rows *rows, const struct lk_queries *q, float *s,
                                size_t stride) {
    if (lk_composed_score(table, rows, q, s, stride)) return;
    plain(rows, q, s, stride);
    if (rows->codec->coding == LK_ASYM)
        lk_avx2_add_score_offsets(rows, q, lk_avx512_needs_16bit(rows->codec->bits), s, stride);
}

LK_ALWAYS_INLINE void accumulate_any(const struct lk_kernels *table, accumulate_fn *plain,
                                     const struct lk_rows *rows, const float *p, size_t stride,
                                     int n_q, float *acc) {
    if (lk_composed_accumulate(table, rows, p, stride, n_q, acc)) return;
    plain(rows, p, stride, n_q, acc);
    if (rows->codec->coding == LK_ASYM) lk_avx2_add_sum_offsets(rows, p, stride, n_q, acc);
}

static void score_avx512(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                         size_t stride) {
    score_any(&lk_kernels_avx512, plain_score_avx512, rows, q, s, stride);
}

static void accumulate_avx512(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                              float *acc) {
    accumulate_any(&lk_kernels_avx512, plain_accumulate_avx512, rows, p, stride, n_q, acc);
}

static void score_avx512vbmi(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                             size_t stride) {
    score_any(&lk_kernels_avx512vbmi, plain_score_avx512vbmi, rows, q, s, stride);
}

static void accumulate_avx512vbmi(const struct lk_rows *rows, const float *p, size_t stride,
                                  int n_q, float *acc) {
    accumulate_any(&lk_kernels_avx512vbmi, plain_accumulate_avx512vbmi, rows, p, stride, n_q, acc);
}

static void score_amx(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                      size_t stride) {
    score_any(&lk_kernels_amx, plain_score_amx, rows, q, s, stride);
}

static void accumulate_amx(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                           float *acc) {
    accumulate_any(&lk_kernels_amx, plain_accumulate_amx, rows, p, stride, n_q, acc);
}

/* ---- softmax ---- */

/* Mask of the lanes below n. */
static inline __mmask16 lane_mask(int n) { return (__mmask16)((1u << n) - 1); }

static float max_f32(const float *s, int n) {
    /* Four maxima, because with one each instruction would wait for the previous one. */
    __m512 max = _mm512_set1_ps(-INFINITY), part[4] = {max, max, max, max};
    int t = 0;
    for (; t + 64 <= n; t += 64) LK_UNROLL
    for (int i = 0; i < 4; i++) part[i] = _mm512_max_ps(part[i], _mm512_loadu_ps(s + t + 16 * i));
    max = _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3]));
    for (; t + 16 <= n; t += 16) max = _mm512_max_ps(max, _mm512_loadu_ps(s + t));
    __mmask16 rest = lane_mask(n - t);
    max = _mm512_mask_max_ps(max, rest, max, _mm512_maskz_loadu_ps(rest, s + t));
    return _mm512_reduce_max_ps(max);
}

/* 2^x for x up to 127. */
static inline __m512 exp2_f32x16(__m512 x) {
    __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lk_exp2_min), _CMP_GT_OQ);
    __m512 k = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           r = _mm512_sub_ps(x, k);
    __m512 y = _mm512_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(lk_exp2[i]));
    return _mm512_maskz_scalef_ps(counts, y, k);
}

static float exp_sum(float *s, int n, float scale, float max) {
    const __m512 factor = _mm512_set1_ps(scale * lk_log2e), shift = _mm512_set1_ps(max * lk_log2e);
    __m512 sum = _mm512_setzero_ps();
    int t = 0;
    for (; t + 16 <= n; t += 16) {
        __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_loadu_ps(s + t), factor, shift));
        _mm512_storeu_ps(s + t, y);
        sum = _mm512_add_ps(sum, y);
    }
    __mmask16 rest = lane_mask(n - t);
    __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_maskz_loadu_ps(rest, s + t), factor, shift));
    _mm512_mask_storeu_ps(s + t, rest, y);
    return _mm512_reduce_add_ps(_mm512_mask_add_ps(sum, rest, sum, y));
}

/* Sums over the lanes of four vectors. */
static inline __m128 lane_sums(const __m512 x[4]) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1])),
           cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    ab = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(ab), _mm512_extractf32x8_ps(ab, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* ---- tables ---- */

#define SHARED_KERNELS                                                                             \
    .max_bits_q8 = LK_AVX512_MAX_BITS_Q8, .max = max_f32, .exp_sum = exp_sum,                      \
    .combine_queries = lk_avx512_combine_queries, LK_AVX2_SHARED_KERNELS

const struct lk_kernels lk_kernels_avx512 = {
    .name = "avx512", .score = score_avx512, .accumulate = accumulate_avx512, SHARED_KERNELS};

const struct lk_kernels lk_kernels_avx512vbmi = {.name = "avx512vbmi",
                                                 .score = score_avx512vbmi,
                                                 .accumulate = accumulate_avx512vbmi,
                                                 SHARED_KERNELS};

const struct lk_kernels lk_kernels_amx = {.name = "amx",
                                          .enter = lk_avx512_amx_enter,
                                          .leave = lk_avx512_amx_leave,
                                          .score = score_amx,
                                          .accumulate = accumulate_amx,
                                          SHARED_KERNELS};
