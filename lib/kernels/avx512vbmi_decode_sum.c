/* Sums of values of rot while decoding, for AVX512-VBMI. */
#include "kernels/avx512_decode_sum.h"

VBMI void lk_avx512vbmi_decode_accumulate(const struct lk_rows *rows, const float *p, size_t stride,
                                          int n_q, float *acc) {
    if (rows->codec->trellis)
        accumulate_bits(vbmi_trellis_form, true, &lk_avx512vbmi_unpack, rows, p, stride, n_q, acc);
    else
        accumulate_bits(vbmi_form, false, &lk_avx512vbmi_unpack, rows, p, stride, n_q, acc);
}
