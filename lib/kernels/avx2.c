/* Tables of the AVX2 and AVX-VNNI kernels: dispatch by codec. */
#include "kernels/avx2.h"

LK_ALWAYS_INLINE void score_tiles(const struct lk_avx2_dots *dots, const struct lk_rows *rows,
                                  const struct lk_queries *q, float *s, size_t stride) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_avx2_f16_score(&tile, q, s, stride);
        else if (rows->codec->coding == LK_KIVI)
            lk_avx2_kivi_score(dots, &tile, q, s, stride);
        else
            lk_avx2_per_token_score(dots, &tile, q, s, stride);
    }
}

LK_ALWAYS_INLINE void accumulate_tiles(const struct lk_avx2_dots *dots, const struct lk_rows *rows,
                                       const float *p, size_t stride, int n_q, float *acc) {
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        if (rows->codec->coding == LK_F16)
            lk_avx2_f16_accumulate(&tile, p, stride, n_q, acc);
        else if (rows->codec->coding == LK_KIVI)
            lk_avx2_kivi_accumulate(dots, &tile, p, stride, n_q, acc);
        else
            lk_avx2_per_token_accumulate(dots, &tile, p, stride, n_q, acc);
    }
}

static void score_avx2(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                       size_t stride) {
    if (lk_composed_score(&lk_kernels_avx2, rows, q, s, stride)) return;
    if (lk_is_plain_lowbit(rows->codec))
        lk_avx2_lowbit_score(rows, q, s, stride);
    else
        score_tiles(&lk_avx2_dots, rows, q, s, stride);
    if (rows->codec->coding == LK_ASYM)
        lk_avx2_add_score_offsets(rows, q, rows->codec->bits > LK_AVX2_MAX_BITS_Q8, s, stride);
}

static void accumulate_avx2(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                            float *acc) {
    if (lk_composed_accumulate(&lk_kernels_avx2, rows, p, stride, n_q, acc)) return;
    if (lk_is_plain_lowbit(rows->codec))
        lk_avx2_lowbit_accumulate(rows, p, stride, n_q, acc);
    else
        accumulate_tiles(&lk_avx2_dots, rows, p, stride, n_q, acc);
    if (rows->codec->coding == LK_ASYM) lk_avx2_add_sum_offsets(rows, p, stride, n_q, acc);
}

static void score_avxvnni(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                          size_t stride) {
    if (lk_composed_score(&lk_kernels_avxvnni, rows, q, s, stride)) return;
    score_tiles(&lk_avxvnni_dots, rows, q, s, stride);
    if (rows->codec->coding == LK_ASYM)
        lk_avx2_add_score_offsets(rows, q, rows->codec->bits > LK_AVX2_MAX_BITS_Q8, s, stride);
}

static void accumulate_avxvnni(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                               float *acc) {
    if (lk_composed_accumulate(&lk_kernels_avxvnni, rows, p, stride, n_q, acc)) return;
    accumulate_tiles(&lk_avxvnni_dots, rows, p, stride, n_q, acc);
    if (rows->codec->coding == LK_ASYM) lk_avx2_add_sum_offsets(rows, p, stride, n_q, acc);
}

const struct lk_kernels lk_kernels_avx2 = {.name = "avx2",
                                           .max_bits_q8 = LK_AVX2_MAX_BITS_Q8,
                                           .chunk = 512,
                                           .score = score_avx2,
                                           .accumulate = accumulate_avx2,
                                           .max = lk_avx2_max,
                                           .exp_sum = lk_avx2_exp_sum,
                                           .combine_queries = lk_avx2_combine_queries,
                                           LK_AVX2_SHARED_KERNELS};

const struct lk_kernels lk_kernels_avxvnni = {.name = "avxvnni",
                                              .max_bits_q8 = LK_AVX2_MAX_BITS_Q8,
                                              .score = score_avxvnni,
                                              .accumulate = accumulate_avxvnni,
                                              .max = lk_avx2_max,
                                              .exp_sum = lk_avx2_exp_sum,
                                              .combine_queries = lk_avx2_combine_queries,
                                              LK_AVX2_SHARED_KERNELS};
