/* Encode and decode rows in eight lanes, as in struct lk_kernels. */
#ifndef LK_KERNELS_VEC8_ENCODE_H
#define LK_KERNELS_VEC8_ENCODE_H

#include "codec/codec.h"

void lk_vec8_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride);
void lk_vec8_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride);

#endif
