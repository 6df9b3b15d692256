#include "kernels/avx2.h"

#include "kernels/avx2_low.h"

static inline void score(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                         const struct lk_queries *q, float *s, size_t stride) {
    if (tile->codec->coding == LK_F16)
        lk_avx2_f16_score(tile, q, s, stride);
    else if (tile->codec->coding == LK_KIVI)
        lk_avx2_kivi_score(dots, tile, q, s, stride);
    else
        lk_avx2_row_score(dots, tile, q, s, stride);
}

static inline void accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                              const float *p, size_t stride, int n_q, float *acc) {
    if (tile->codec->coding == LK_F16)
        lk_avx2_f16_accumulate(tile, p, stride, n_q, acc);
    else if (tile->codec->coding == LK_KIVI)
        lk_avx2_kivi_accumulate(dots, tile, p, stride, n_q, acc);
    else
        lk_avx2_row_accumulate(dots, tile, p, stride, n_q, acc);
}

static void score_tile_avx2(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                            size_t stride) {
    score(&lk_avx2_dots, tile, q, s, stride);
}

static void accumulate_tile_avx2(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                                 float *acc) {
    accumulate(&lk_avx2_dots, tile, p, stride, n_q, acc);
}

static void score_tile_avxvnni(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                               size_t stride) {
    score(&lk_avxvnni_dots, tile, q, s, stride);
}

static void accumulate_tile_avxvnni(const struct lk_tile *tile, const float *p, size_t stride,
                                    int n_q, float *acc) {
    accumulate(&lk_avxvnni_dots, tile, p, stride, n_q, acc);
}

static void score_avx2(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                       size_t stride) {
    if (lk_avx2_is_low(rows->codec))
        lk_avx2_low_score(rows, q, s, stride);
    else
        lk_score_tiles(rows, q, s, stride, score_tile_avx2);
}

static void accumulate_avx2(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                            float *acc) {
    if (lk_avx2_is_low(rows->codec))
        lk_avx2_low_accumulate(rows, p, stride, n_q, acc);
    else
        lk_accumulate_tiles(rows, p, stride, n_q, acc, accumulate_tile_avx2);
}

static void score_avxvnni(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                          size_t stride) {
    lk_score_tiles(rows, q, s, stride, score_tile_avxvnni);
}

static void accumulate_avxvnni(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                               float *acc) {
    lk_accumulate_tiles(rows, p, stride, n_q, acc, accumulate_tile_avxvnni);
}

const struct lk_kernels lk_kernels_avx2 = {.name = "avx2",
                                           .chunk = 512,
                                           .score = score_avx2,
                                           .accumulate = accumulate_avx2,
                                           .score_turned = lk_avx2_score_turned,
                                           .encode = lk_avx2_encode,
                                           .decode = lk_avx2_decode,
                                           .max = lk_avx2_max,
                                           .exp_sum = lk_avx2_exp_sum,
                                           .gelu_layer = lk_avx2_gelu_layer,
                                           .add_offsets = lk_avx2_add_offsets};

const struct lk_kernels lk_kernels_avxvnni = {.name = "avxvnni",
                                              .score = score_avxvnni,
                                              .accumulate = accumulate_avxvnni,
                                              .score_turned = lk_avx2_score_turned,
                                              .encode = lk_avx2_encode,
                                              .decode = lk_avx2_decode,
                                              .max = lk_avx2_max,
                                              .exp_sum = lk_avx2_exp_sum,
                                              .gelu_layer = lk_avx2_gelu_layer,
                                              .add_offsets = lk_avx2_add_offsets};
