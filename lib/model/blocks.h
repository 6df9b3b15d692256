/* Graph fragments that several families share. x is [n_tok][n_embd] unless stated otherwise. */
#ifndef LK_MODEL_BLOCKS_H
#define LK_MODEL_BLOCKS_H

#include "model/net.h"

struct ggml_tensor *lk_rms_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                struct ggml_tensor *weight, float eps);
/* `bias` may be NULL. */
struct ggml_tensor *lk_layer_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                  struct ggml_tensor *weight, struct ggml_tensor *bias, float eps);

/* weight x + bias + residual. `bias` may be NULL; so may `residual`, which has the product's shape.
 * For many tokens, matrices of types that ggml multiplies slowly are first cast to f32, in the
 * graph's memory. */
struct ggml_tensor *lk_linear(const struct lk_net *net, struct ggml_context *ctx,
                              struct ggml_tensor *weight, struct ggml_tensor *bias,
                              struct ggml_tensor *residual, struct ggml_tensor *x);

/* weight x + bias, times the residual scale, + residual. Without a residual: weight x + bias. */
struct ggml_tensor *lk_add_to_residual(const struct lk_net *net, struct ggml_context *ctx,
                                       struct ggml_tensor *weight, struct ggml_tensor *bias,
                                       struct ggml_tensor *residual, struct ggml_tensor *x);

/* Bytes that lk_linear needs in a graph of n_tok tokens besides results: the largest matrix that it
 * casts, and the largest inputs that it converts (many_tokens.h). */
uint64_t lk_linear_scratch_bytes(const struct lk_net *net, int64_t n_tok);

/* Heads [first, first + n) of each row: x [n_tok][heads * d_head] -> view [n_tok][n][d_head]. */
struct ggml_tensor *lk_view_heads(struct ggml_context *ctx, struct ggml_tensor *x, int first, int n,
                                  int d_head);

/* RoPE of `layer` on the heads x [n_tok][n_head][d_head], whether the layer rotates or not.
 * rope_mode must not be -1. */
struct ggml_tensor *lk_apply_rope(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                  struct ggml_tensor *x, struct ggml_tensor *pos);

/* The gradient with respect to x, from dy of the same shape. */
struct ggml_tensor *lk_apply_rope_back(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *dy, struct ggml_tensor *pos);

/* Fill q, k and v from the normed x. RoPE is applied if the family uses it, but not to latents. */
void lk_make_qkv(const struct lk_net *net, struct ggml_context *ctx, int layer,
                 struct ggml_tensor *x, struct ggml_tensor *pos, struct lk_qkv *out);

/* down(act(gate x) * up x) + residual, which may be NULL */
struct ggml_tensor *lk_ffn_silu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *residual,
                                      struct ggml_tensor *x);
struct ggml_tensor *lk_ffn_gelu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *residual,
                                      struct ggml_tensor *x);
/* down(gelu(up x)) + residual, which may be NULL */
struct ggml_tensor *lk_ffn_gelu(const struct lk_net *net, struct ggml_context *ctx,
                                const struct lk_layer *l, struct ggml_tensor *residual,
                                struct ggml_tensor *x);

/* ---- whole functions of struct lk_family ---- */

/* Token embeddings times embd_scale. `pos` is not used. */
struct ggml_tensor *lk_embed_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                    struct ggml_tensor *tok, struct ggml_tensor *pos);

/* RMS norm, if the layer has one, q k v. */
struct lk_qkv lk_pre_attn_rms(const struct lk_net *net, struct ggml_context *ctx, int layer,
                              struct ggml_tensor *x, struct ggml_tensor *pos);
/* W_O, residual, RMS norm, gated SiLU, residual. */
struct ggml_tensor *lk_post_attn_silu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                      const struct lk_qkv *qkv, struct ggml_tensor *attn);
/* W_O, RMS norm, residual, RMS norm (if the layer has it), gated GELU or SiLU, RMS norm,
 * residual. */
struct ggml_tensor *lk_post_attn_gelu_normed(const struct lk_net *net, struct ggml_context *ctx,
                                             int layer, const struct lk_qkv *qkv,
                                             struct ggml_tensor *attn);
struct ggml_tensor *lk_post_attn_silu_normed(const struct lk_net *net, struct ggml_context *ctx,
                                             int layer, const struct lk_qkv *qkv,
                                             struct ggml_tensor *attn);
/* RMS norm, output matrix, scale, soft cap. */
struct ggml_tensor *lk_norm_rms(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);
struct ggml_tensor *lk_head_rms(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);

/* Layer norm, q k v. */
struct lk_qkv lk_pre_attn_ln(const struct lk_net *net, struct ggml_context *ctx, int layer,
                             struct ggml_tensor *x, struct ggml_tensor *pos);
/* W_O, residual, layer norm, GELU, residual. */
struct ggml_tensor *lk_post_attn_gelu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                      const struct lk_qkv *qkv, struct ggml_tensor *attn);
/* Layer norm, output matrix. */
struct ggml_tensor *lk_norm_ln(const struct lk_net *net, struct ggml_context *ctx,
                               struct ggml_tensor *x);
struct ggml_tensor *lk_head_ln(const struct lk_net *net, struct ggml_context *ctx,
                               struct ggml_tensor *x);

#endif
