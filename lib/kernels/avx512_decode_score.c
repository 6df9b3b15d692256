/* Scores of rot while decoding, for AVX-512 without VBMI. */
#include "kernels/avx512_decode_score.h"

void lk_avx512_decode_score(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                            size_t stride) {
    if (rows->codec->trellis)
        score_bits(plain_trellis_form, true, &lk_avx512_unpack, rows, q, s, stride);
    else
        score_bits(plain_form, false, &lk_avx512_unpack, rows, q, s, stride);
}
