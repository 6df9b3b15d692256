/* Sums of values of rot while decoding, for AVX-512 without VBMI. */
#include "kernels/avx512_decode_sum.h"

void lk_avx512_decode_accumulate(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                                 float *acc) {
    if (rows->codec->trellis)
        accumulate_bits(plain_trellis_form, true, &lk_avx512_unpack, rows, p, stride, n_q, acc);
    else
        accumulate_bits(plain_form, false, &lk_avx512_unpack, rows, p, stride, n_q, acc);
}
