/* Table of the NEON kernels: dispatch by codec. */
#include "kernels/neon.h"

#include "kernels/composed.h"

static void score_tiles(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                        size_t stride) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_neon_f16_score(&tile, q, s, stride);
        else if (rows->codec->coding == LK_KIVI)
            lk_neon_kivi_score(&tile, q, s, stride);
        else
            lk_neon_per_token_score(&tile, q, s, stride);
    }
}

static void accumulate_tiles(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_neon_f16_accumulate(&tile, p, stride, n_q, acc);
        else if (rows->codec->coding == LK_KIVI)
            lk_neon_kivi_accumulate(&tile, p, stride, n_q, acc);
        else
            lk_neon_per_token_accumulate(&tile, p, stride, n_q, acc);
    }
}

static void score(const struct lk_rows *rows, const struct lk_queries *q, float *s, size_t stride) {
    if (lk_composed_score(&lk_kernels_neon, rows, q, s, stride)) return;
    score_tiles(rows, q, s, stride);
    if (rows->codec->coding == LK_ASYM)
        lk_neon_add_score_offsets(rows, q, rows->codec->bits > LK_NEON_MAX_BITS_Q8, s, stride);
}

static void accumulate(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                       float *acc) {
    if (lk_composed_accumulate(&lk_kernels_neon, rows, p, stride, n_q, acc)) return;
    accumulate_tiles(rows, p, stride, n_q, acc);
    if (rows->codec->coding == LK_ASYM) lk_neon_add_sum_offsets(rows, p, stride, n_q, acc);
}

const struct lk_kernels lk_kernels_neon = {.name = "neon",
                                           .max_bits_q8 = LK_NEON_MAX_BITS_Q8,
                                           .score = score,
                                           .score_tiles = lk_neon_score_tiles,
                                           .accumulate = accumulate,
                                           .score_rope = lk_neon_score_rope,
                                           .combine_queries = lk_neon_combine_queries,
                                           .encode = lk_neon_encode,
                                           .decode = lk_neon_decode,
                                           .max = lk_neon_max,
                                           .exp_sum = lk_neon_exp_sum,
                                           .gelu_layer = lk_neon_gelu_layer,
                                           .delta_step = lk_neon_delta_step,
                                           .scan_step = lk_neon_scan_step,
                                           .add_offsets = lk_neon_add_offsets};
