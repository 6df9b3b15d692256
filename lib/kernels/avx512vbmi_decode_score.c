/* Scores of rot while decoding, for AVX512-VBMI. */
#include "kernels/avx512_decode_score.h"

VBMI void lk_avx512vbmi_decode_score(const struct lk_rows *rows, const struct lk_queries *q,
                                     float *s, size_t stride) {
    if (rows->codec->trellis)
        score_bits(vbmi_trellis_form, true, &lk_avx512vbmi_unpack, rows, q, s, stride);
    else
        score_bits(vbmi_form, false, &lk_avx512vbmi_unpack, rows, q, s, stride);
}
