/* Q4_1 matrices as a Q4_0 part and offsets, for CPUs on which ggml can repack Q4_0 but not Q4_1.
 *
 * A Q4_1 block has 32 weights of one output: a scale d, a minimum m and codes q in 0..15, with
 * w = d q + m. A Q4_0 block has the same scale and codes, with w = d (q - 8). So a Q4_1 matrix is a
 * Q4_0 matrix plus one offset m + 8 d per block:
 *
 *   W x  =  Q4_0 x  +  offset (sums of x over blocks of 32 inputs)
 *
 *   Q4_1, 20 bytes   | d, half | m, half | 16 bytes: codes j and j + 16 of the 32 |
 *   Q4_0, 18 bytes   | d, half |           16 bytes: the same                     |
 *   offset, 2 bytes  | m + 8 d, half |
 *
 * The weights are equal except for rounding m + 8 d to half precision: a relative error of at most
 * 2^-11, the same as that of m. */
#ifndef LK_MODEL_Q4_1_SPLIT_H
#define LK_MODEL_Q4_1_SPLIT_H

#include "kernels/kernels.h"

#include "ggml.h"

/* rows [n_out][n_in] of Q4_1 -> q4_0 [n_out][n_in] and offset [lk_offset_count(n_in, n_out)], in
 * the layout of kernels.h. n_in is a multiple of 32. */
void lk_q4_1_split_rows(const void *rows, int64_t n_in, int64_t n_out, void *q4_0,
                        uint16_t *offset);

/* Attach a tensor of lk_offset_count half floats to its Q4_0 matrix, and get the offsets of a
 * matrix, NULL if it has none. To ggml, the offsets are a source of the matrix. */
void lk_q4_1_attach_offset(struct ggml_tensor *q4_0, struct ggml_tensor *offset);
struct ggml_tensor *lk_q4_1_offset(const struct ggml_tensor *matrix);

/* Add the offsets' product with x, and `residual` if not NULL, to y, the Q4_0 part's product with
 * x. residual has y's shape. Works in place. */
struct ggml_tensor *lk_q4_1_add_offset(struct ggml_context *ctx, const struct lk_kernels *kernels,
                                       struct ggml_tensor *offset, struct ggml_tensor *x,
                                       struct ggml_tensor *residual, struct ggml_tensor *y);

#endif
