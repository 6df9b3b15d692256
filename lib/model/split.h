/* Matrices of Q4_1 in two parts, for CPUs that ggml has a repacked layout of Q4_0 for and none of Q4_1.
 *
 * Q4_1 keeps a step d and a least value m for 32 inputs of an output, and codes q in 0..15: w = d q + m. Q4_0 has the same step and
 * codes, and w = d (q - 8). So a matrix of Q4_1 is one of Q4_0 and, for 32 inputs, an offset m + 8 d:
 *
 *   W x  =  Q4_0 x  +  offset (sums of x over 32 inputs)
 *
 *   Q4_1, 20 bytes   | d, half | m, half | 16 bytes: codes j and j + 16 of the 32 |
 *   Q4_0, 18 bytes   | d, half |           16 bytes: the same                     |
 *   offset, 2 bytes  | m + 8 d, half |
 *
 * Weights are the same numbers but for the rounding of the sum to a half float, at most 2^-11 of it; m has such a rounding itself. */
#ifndef LK_MODEL_SPLIT_H
#define LK_MODEL_SPLIT_H

#include "kernels/kernels.h"

#include "ggml.h"

/* rows [n_out][n_in] of Q4_1 -> q4_0 [n_out][n_in], offset as kern.h has it (lk_offset_count); n_in is a multiple of 32. */
void lk_split_rows(const void *rows, int64_t n_in, int64_t n_out, void *q4_0, uint16_t *offset);

/* Let the tensor of Q4_0 be known to have these offsets, lk_offset_count half floats; and the offsets of a
 * matrix, NULL where it has none. The graph sees them as a source of the matrix. */
void lk_split_pair(struct ggml_tensor *q4_0, struct ggml_tensor *offset);
struct ggml_tensor *lk_split_offset(const struct ggml_tensor *matrix);

/* y, the product of the Q4_0 part with x, plus the other part, and plus `more` of y's shape unless it is NULL; in y's place. */
struct ggml_tensor *lk_split_add(struct ggml_context *ctx, const struct lk_kernels *kernels,
                                 struct ggml_tensor *offset, struct ggml_tensor *x,
                                 struct ggml_tensor *more, struct ggml_tensor *y);

#endif
