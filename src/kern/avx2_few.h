/* rot of up to 4 bits for the few queries of a decoder, which unpacking would keep waiting: a cell goes from its codes to
 * the products without being stored, sums stay in 16 bits for as long as they fit, and weights of several tiles of V are
 * made side by side. */
#ifndef LK_KERN_AVX2_FEW_H
#define LK_KERN_AVX2_FEW_H

#include "kern/avx2.h"

enum { LK_AVX2_FEW = 2 * LK_AVX2_QUERIES }; /* queries, at most */

/* Whether these kernels serve n_q queries of such rows. */
static inline bool lk_avx2_is_few(const struct lk_codec *codec, int n_q) {
    return n_q <= LK_AVX2_FEW && codec->coding == LK_ROT && codec->bits <= 4;
}

/* kern.h's score and accumulate, where lk_avx2_is_few. */
void lk_avx2_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s, size_t stride);
void lk_avx2_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q, float *acc);

#endif
