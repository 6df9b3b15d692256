/* Products of quantized matrices with many tokens, for CPUs whose kernels are faster than ggml
 * (kernels/products.h). */
#ifndef LK_MODEL_MANY_TOKENS_H
#define LK_MODEL_MANY_TOKENS_H

#include "model/net.h"

/* Does a buffer type of ggml repack Q4_K to the layout that the kernels read? Another version of
 * ggml may have another one. */
bool lk_knows_repacked(ggml_backend_buffer_type_t type);

/* The product of weight, with its offsets (q4_1_split.h), and x [n_tok][n_in], plus residual if not
 * NULL -> [n_tok][n_out]. NULL if ggml has to compute it: for few tokens, other types, places and
 * shapes, or without such kernels. */
struct ggml_tensor *lk_many_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                   struct ggml_tensor *weight, struct ggml_tensor *residual,
                                   struct ggml_tensor *x);

/* Bytes of the inputs of n_tok tokens as the kernels read them; 0 if ggml computes the product. */
uint64_t lk_many_tokens_bytes(const struct lk_net *net, const struct ggml_tensor *weight,
                              int64_t n_tok);

#endif
