/* Kernels of AMX (avx512_amx.c); score and accumulate are for rot and int8. They want what lk_avx512_amx_enter sets. */
#ifndef LK_KERNELS_AVX512_AMX_H
#define LK_KERNELS_AVX512_AMX_H

#include "kernels/avx512.h"

void lk_avx512_amx_enter(struct lk_kernels_state *before);
void lk_avx512_amx_leave(const struct lk_kernels_state *before);
void lk_avx512_amx_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                         size_t stride);
void lk_avx512_amx_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                              float *acc);

#endif
