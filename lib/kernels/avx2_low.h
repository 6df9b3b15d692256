/* rot of up to 4 bits: a cell goes from its codes to the products without being stored, sums stay in 16 bits for as long as
 * they fit, and weights of several tiles of V are made side by side. */
#ifndef LK_KERNELS_AVX2_LOW_H
#define LK_KERNELS_AVX2_LOW_H

#include "kernels/avx2.h"

/* Whether these kernels serve rows of the codec. */
static inline bool lk_avx2_is_low(const struct lk_codec *codec) {
    return codec->coding == LK_ROT && codec->bits <= 4;
}

/* kern.h's score and accumulate of such rows. */
void lk_avx2_low_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                       size_t stride);
void lk_avx2_low_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                            float *acc);

#endif
