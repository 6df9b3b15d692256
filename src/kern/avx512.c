#include "kern/avx2.h"
#include "kern/avx512.h"

static inline void score(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile, const struct lk_queries *q,
                         float *s, size_t stride) {
    if (tile->codec->coding == LK_F16) lk_avx512_f16_score(tile, q, s, stride);
    else if (tile->codec->coding == LK_KIVI) lk_avx512_kivi_score(unpack, tile, q, s, stride);
    else lk_avx512_row_score(unpack, tile, q, s, stride);
}

static inline void accumulate(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile, const float *p,
                              size_t stride, int n_q, float *acc) {
    if (tile->codec->coding == LK_F16) lk_avx512_f16_accumulate(tile, p, stride, n_q, acc);
    else if (tile->codec->coding == LK_KIVI) lk_avx512_kivi_accumulate(unpack, tile, p, stride, n_q, acc);
    else lk_avx512_row_accumulate(unpack, tile, p, stride, n_q, acc);
}

static void score_avx512(const struct lk_tile *tile, const struct lk_queries *q, float *s, size_t stride) {
    score(&lk_avx512_unpack, tile, q, s, stride);
}

static void accumulate_avx512(const struct lk_tile *tile, const float *p, size_t stride, int n_q, float *acc) {
    accumulate(&lk_avx512_unpack, tile, p, stride, n_q, acc);
}

static void score_vbmi(const struct lk_tile *tile, const struct lk_queries *q, float *s, size_t stride) {
    score(&lk_avx512vbmi_unpack, tile, q, s, stride);
}

static void accumulate_vbmi(const struct lk_tile *tile, const float *p, size_t stride, int n_q, float *acc) {
    accumulate(&lk_avx512vbmi_unpack, tile, p, stride, n_q, acc);
}

const struct lk_kern lk_kern_avx512 = {.name = "avx512",
                                       .score = score_avx512,
                                       .accumulate = accumulate_avx512,
                                       .score_turned = lk_avx2_score_turned,
                                       .encode = lk_avx2_encode,
                                       .decode = lk_avx2_decode,
                                       .max = lk_avx512_max,
                                       .exp_sum = lk_avx512_exp_sum};

const struct lk_kern lk_kern_avx512vbmi = {.name = "avx512vbmi",
                                           .score = score_vbmi,
                                           .accumulate = accumulate_vbmi,
                                           .score_turned = lk_avx2_score_turned,
                                           .encode = lk_avx2_encode,
                                           .decode = lk_avx2_decode,
                                           .max = lk_avx512_max,
                                           .exp_sum = lk_avx512_exp_sum};
