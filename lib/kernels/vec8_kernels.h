/* Entries of struct lk_kernels, where they are specified, that the tables of all instruction sets
 * share (vec8_kernels.c). */
#ifndef LK_KERNELS_VEC8_KERNELS_H
#define LK_KERNELS_VEC8_KERNELS_H

#include "kernels/kernels.h"
#include "kernels/vec8_encode.h"

void lk_vec8_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y);
void lk_vec8_delta_step(const float *from, float *to, int d, const float *q, const float *k,
                        const float *v, float decay, float beta, float *out);
void lk_vec8_scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out);
void lk_vec8_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y);
void lk_vec8_score_rope(const struct lk_rope_keys *all, const float *q, size_t q_stride, int n_q,
                        float *s, size_t stride);
void lk_vec8_combine_queries(const struct lk_queries *x, const float *w, int n,
                             const struct lk_queries *out);
void lk_vec8_add_score_offsets(const struct lk_rows *rows, const struct lk_queries *q, bool fine,
                               float *s, size_t stride);
void lk_vec8_add_sum_offsets(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc);

/* These, and vec8_encode.c. */
#define LK_VEC8_KERNELS                                                                            \
    .score_rope = lk_vec8_score_rope, .encode = lk_vec8_encode, .decode = lk_vec8_decode,          \
    .gelu_layer = lk_vec8_gelu_layer, .add_offsets = lk_vec8_add_offsets,                          \
    .delta_step = lk_vec8_delta_step, .scan_step = lk_vec8_scan_step,                              \
    .add_score_offsets = lk_vec8_add_score_offsets, .add_sum_offsets = lk_vec8_add_sum_offsets

#endif
