/* Feed-forward networks that are mixtures of experts.
 *
 *   x -> router -> the n_expert_used largest logits -> softmax over these: the experts' weights
 *     -> the chosen experts: down(act(gate x) * up x)  -> sum of weight * expert + residual
 *
 * The matrices of all experts of a layer are one tensor [n_expert][n_out][n_in].
 *
 * struct lk_hparams has what varies. Probabilities may be sigmoids of the logits. A bias may be
 * added to them for choosing only. If there are groups of experts, all choices come from the
 * n_group_used groups whose best two experts have the largest sums. A shared expert, which every
 * token uses, is the gated network of the layer (ffn_gate, ffn_up, ffn_down), possibly times the
 * sigmoid of a gate. */
#ifndef LK_MODEL_EXPERTS_H
#define LK_MODEL_EXPERTS_H

#include "model/bind.h"

enum { LK_MAX_EXPERTS = 1024 };

/* Read expert_count, expert_used_count, expert_feed_forward_length and the groups. Without the
 * first key the model has no experts. Weights are probabilities by softmax that are scaled to add
 * up to 1. Errors: LK_E_FORMAT. */
lk_status lk_experts_read(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err);

/* LK_E_FORMAT if the model has no experts: for families that need them. */
lk_status lk_experts_require(const struct lk_hparams *hp, const struct lk_gguf_reader *r,
                             lk_err *err);

/* Read leading_dense_block_count: how many of the first layers have no experts. */
lk_status lk_experts_read_dense(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err);

/* Read expert_gating_func: 1, probabilities by softmax, or 2, by sigmoids. With 0 or without the
 * key, what hp has remains. LK_E_UNSUPPORTED for others. */
lk_status lk_experts_read_function(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                   enum lk_need need, lk_err *err);

/* Bind the router and the experts of a layer; with LK_REQUIRED also a bias for each matrix. Gate
 * and up may be one tensor in the file. Errors are those of lk_bind. */
lk_status lk_experts_bind(struct lk_net *net, struct lk_loader *ld, int layer, enum lk_need bias,
                          lk_err *err);

/* Bind the bias for choosing experts. */
lk_status lk_experts_bind_bias(struct lk_net *net, struct lk_loader *ld, int layer,
                               enum lk_need need, lk_err *err);

/* Bind the shared expert of a layer, of n_ff_shared channels, and its gate if `gated`. */
lk_status lk_experts_bind_shared(struct lk_net *net, struct lk_loader *ld, int layer, bool gated,
                                 lk_err *err);

/* The mixture and the shared expert for the normed x [n_tok][n_embd], plus residual. */
struct ggml_tensor *lk_experts_ffn(const struct lk_net *net, struct ggml_context *ctx,
                                   const struct lk_layer *l, struct ggml_tensor *residual,
                                   struct ggml_tensor *x);

/* The mixture alone, for x, plus residual, which may be NULL. The router reads `router_x`, the
 * experts read x. */
struct ggml_tensor *lk_experts_mix(const struct lk_net *net, struct ggml_context *ctx,
                                   const struct lk_layer *l, struct ggml_tensor *residual,
                                   struct ggml_tensor *router_x, struct ggml_tensor *x);

/* A whole function of struct lk_family: W_O, residual, RMS norm, mixture, residual. */
struct ggml_tensor *lk_post_attn_experts(const struct lk_net *net, struct ggml_context *ctx,
                                         int layer, const struct lk_qkv *qkv,
                                         struct ggml_tensor *attn);

/* Floats per token that the activations of a layer's network need, with experts or without. */
uint64_t lk_experts_width(const struct lk_hparams *hp);

#endif
