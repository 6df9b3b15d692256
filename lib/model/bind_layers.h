/* Binding of the groups of tensors that several families share. Errors are those of lk_bind. */
#ifndef LK_MODEL_BIND_LAYERS_H
#define LK_MODEL_BIND_LAYERS_H

#include "model/bind.h"

/* Token embeddings, final norm and output matrix. If the file has no output matrix, it is tied to
 * the token embeddings. `norm_bias`: the final norm has a bias. */
lk_status lk_bind_embd_output(struct lk_net *net, struct lk_loader *ld, bool norm_bias,
                              lk_err *err);

/* Attention projections of one layer: q, k and v, separate or fused, and W_O.
 * `fused`: only the fused form is accepted. `bias`: whether the biases are required. */
lk_status lk_bind_attention(struct lk_net *net, struct lk_loader *ld, int layer, bool fused,
                            enum lk_need bias, lk_err *err);

/* The gated feed-forward network of one layer or, after the first n_dense, its mixture of experts,
 * if the model has some. */
lk_status lk_bind_gated_ffn(struct lk_net *net, struct lk_loader *ld, int layer, lk_err *err);

/* The same in a layer without experts. */
lk_status lk_bind_dense_ffn(struct lk_net *net, struct lk_loader *ld, int layer, lk_err *err);

/* All layers of a decoder with RMS norms and a gated feed-forward network, or a mixture of
 * experts. */
lk_status lk_bind_gated_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* All layers of a decoder with layer norms, fused attention and a plain feed-forward network. Every
 * projection has a bias. */
lk_status lk_bind_plain_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* Norms of the single q and k heads, in all layers; with `whole`, of all heads together. */
lk_status lk_bind_qk_norms(struct lk_net *net, struct lk_loader *ld, bool whole, lk_err *err);

/* Norms of what attention and the feed-forward network add to the residual, in all layers. */
lk_status lk_bind_post_norms(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* Divisors of the RoPE frequencies, if the file has some: those of Llama 3, or two lists of
 * LongRoPE. Its long one is for contexts beyond n_ctx_orig. */
lk_status lk_bind_rope_factors(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* LK_E_UNSUPPORTED if a sidecar is to change weights, which the family does not support. */
lk_status lk_bind_check_unchanged(const struct lk_loader *ld, lk_err *err);

#endif
