#include "kernels/avx512.h"

#include "kernels/avx512_amx.h"
#include "kernels/avx512_few.h"

static bool is_row_codec(const struct lk_rows *rows) {
    return rows->codec->coding == LK_ROT || rows->codec->coding == LK_INT8;
}

static inline void score_flat(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile,
                              const struct lk_queries *q, float *s, size_t stride) {
    if (tile->codec->coding == LK_F16)
        lk_avx512_f16_score(tile, q, s, stride);
    else
        lk_avx512_kivi_score(unpack, tile, q, s, stride);
}

static inline void accumulate_flat(const struct lk_avx512_unpack *unpack,
                                   const struct lk_tile *tile, const float *p, size_t stride,
                                   int n_q, float *acc) {
    if (tile->codec->coding == LK_F16)
        lk_avx512_f16_accumulate(tile, p, stride, n_q, acc);
    else
        lk_avx512_kivi_accumulate(unpack, tile, p, stride, n_q, acc);
}

static void score_plain(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                        size_t stride) {
    score_flat(&lk_avx512_unpack, tile, q, s, stride);
}

static void accumulate_plain(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                             float *acc) {
    accumulate_flat(&lk_avx512_unpack, tile, p, stride, n_q, acc);
}

static void score_vbmi(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride) {
    score_flat(&lk_avx512vbmi_unpack, tile, q, s, stride);
}

static void accumulate_vbmi(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    accumulate_flat(&lk_avx512vbmi_unpack, tile, p, stride, n_q, acc);
}

static void score_avx512(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                         size_t stride) {
    if (lk_avx512_is_few(rows->codec, q->n_q))
        lk_avx512_few_score(rows, q, s, stride);
    else if (is_row_codec(rows))
        lk_avx512_row_score(&lk_avx512_unpack, rows, q, s, stride);
    else
        lk_score_tiles(rows, q, s, stride, score_plain);
}

static void accumulate_avx512(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                              float *acc) {
    if (lk_avx512_is_few(rows->codec, n_q))
        lk_avx512_few_accumulate(rows, p, stride, n_q, acc);
    else if (is_row_codec(rows))
        lk_avx512_row_accumulate(&lk_avx512_unpack, rows, p, stride, n_q, acc);
    else
        lk_accumulate_tiles(rows, p, stride, n_q, acc, accumulate_plain);
}

static void score_avx512vbmi(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                             size_t stride) {
    if (lk_avx512_is_few(rows->codec, q->n_q))
        lk_avx512vbmi_few_score(rows, q, s, stride);
    else if (is_row_codec(rows))
        lk_avx512_row_score(&lk_avx512vbmi_unpack, rows, q, s, stride);
    else
        lk_score_tiles(rows, q, s, stride, score_vbmi);
}

static void accumulate_avx512vbmi(const struct lk_rows *rows, const float *p, size_t stride,
                                  int n_q, float *acc) {
    if (lk_avx512_is_few(rows->codec, n_q))
        lk_avx512vbmi_few_accumulate(rows, p, stride, n_q, acc);
    else if (is_row_codec(rows))
        lk_avx512_row_accumulate(&lk_avx512vbmi_unpack, rows, p, stride, n_q, acc);
    else
        lk_accumulate_tiles(rows, p, stride, n_q, acc, accumulate_vbmi);
}

/* Few queries leave registers of 16 rows too empty. */
static void score_amx(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                      size_t stride) {
    if (is_row_codec(rows) && q->n_q > LK_AVX512_QUERIES)
        lk_avx512_amx_score(rows, q, s, stride);
    else
        score_avx512vbmi(rows, q, s, stride);
}

static void accumulate_amx(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                           float *acc) {
    if (is_row_codec(rows) && n_q > LK_AVX512_QUERIES)
        lk_avx512_amx_accumulate(rows, p, stride, n_q, acc);
    else
        accumulate_avx512vbmi(rows, p, stride, n_q, acc);
}

const struct lk_kernels lk_kernels_avx512 = {.name = "avx512",
                                             .score = score_avx512,
                                             .accumulate = accumulate_avx512,
                                             .score_turned = lk_avx2_score_turned,
                                             .encode = lk_avx2_encode,
                                             .decode = lk_avx2_decode,
                                             .max = lk_avx512_max,
                                             .exp_sum = lk_avx512_exp_sum,
                                             .gelu_layer = lk_avx2_gelu_layer,
                                             .add_offsets = lk_avx2_add_offsets};

const struct lk_kernels lk_kernels_avx512vbmi = {.name = "avx512vbmi",
                                                 .score = score_avx512vbmi,
                                                 .accumulate = accumulate_avx512vbmi,
                                                 .score_turned = lk_avx2_score_turned,
                                                 .encode = lk_avx2_encode,
                                                 .decode = lk_avx2_decode,
                                                 .max = lk_avx512_max,
                                                 .exp_sum = lk_avx512_exp_sum,
                                                 .gelu_layer = lk_avx2_gelu_layer,
                                                 .add_offsets = lk_avx2_add_offsets};

const struct lk_kernels lk_kernels_amx = {.name = "amx",
                                          .enter = lk_avx512_amx_enter,
                                          .leave = lk_avx512_amx_leave,
                                          .score = score_amx,
                                          .accumulate = accumulate_amx,
                                          .score_turned = lk_avx2_score_turned,
                                          .encode = lk_avx2_encode,
                                          .decode = lk_avx2_decode,
                                          .max = lk_avx512_max,
                                          .exp_sum = lk_avx512_exp_sum,
                                          .gelu_layer = lk_avx2_gelu_layer,
                                          .add_offsets = lk_avx2_add_offsets};
