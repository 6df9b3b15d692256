#include "kernels/neon.h"

static void score_tile(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride) {
    if (tile->codec->coding == LK_F16)
        lk_neon_f16_score(tile, q, s, stride);
    else if (tile->codec->coding == LK_KIVI)
        lk_neon_kivi_score(tile, q, s, stride);
    else
        lk_neon_row_score(tile, q, s, stride);
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    if (tile->codec->coding == LK_F16)
        lk_neon_f16_accumulate(tile, p, stride, n_q, acc);
    else if (tile->codec->coding == LK_KIVI)
        lk_neon_kivi_accumulate(tile, p, stride, n_q, acc);
    else
        lk_neon_row_accumulate(tile, p, stride, n_q, acc);
}

static void score(const struct lk_rows *rows, const struct lk_queries *q, float *s, size_t stride) {
    lk_score_tiles(rows, q, s, stride, score_tile);
}

static void accumulate(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                       float *acc) {
    lk_accumulate_tiles(rows, p, stride, n_q, acc, accumulate_tile);
}

const struct lk_kernels lk_kernels_neon = {.name = "neon",
                                           .score = score,
                                           .accumulate = accumulate,
                                           .score_turned = lk_neon_score_turned,
                                           .encode = lk_neon_encode,
                                           .decode = lk_neon_decode,
                                           .max = lk_neon_max,
                                           .exp_sum = lk_neon_exp_sum,
                                           .gelu_layer = lk_neon_gelu_layer,
                                           .add_offsets = lk_neon_add_offsets};
