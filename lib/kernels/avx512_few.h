/* rot of up to 4 bits for the few queries of a decoder, which unpacking would keep waiting: a cell goes from its codes to
 * the products without being stored, and weights of several tiles of V are made side by side. */
#ifndef LK_KERNELS_AVX512_FEW_H
#define LK_KERNELS_AVX512_FEW_H

#include "kernels/avx512.h"

enum { LK_AVX512_FEW = 2 * LK_AVX512_QUERIES }; /* queries, at most */

/* Whether these kernels serve n_q queries of such rows. */
static inline bool lk_avx512_is_few(const struct lk_codec *codec, int n_q) {
    return n_q <= LK_AVX512_FEW && codec->coding == LK_ROT && codec->bits <= 4;
}

/* kern.h's score and accumulate, where lk_avx512_is_few; with and without VBMI. */
void lk_avx512_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                         size_t stride);
void lk_avx512_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                              float *acc);
void lk_avx512vbmi_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                             size_t stride);
void lk_avx512vbmi_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                                  float *acc);

#endif
