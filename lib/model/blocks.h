/* Pieces that several families share: graph fragments, and the binding of their tensors. */
#ifndef LK_MODEL_BLOCKS_H
#define LK_MODEL_BLOCKS_H

#include "model/loader.h"

/* ---- graph fragments; x is [n_tok][n_embd] unless said otherwise ---- */

struct ggml_tensor *lk_rms_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                struct ggml_tensor *weight, float eps);
struct ggml_tensor *lk_layer_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                  struct ggml_tensor *weight, struct ggml_tensor *bias, float eps);

/* weight x + bias + more; bias and more, which has the product's shape, may be NULL. For many tokens, matrices of types that ggml
 * multiplies slowly are first widened to f32, in the graph's memory. */
struct ggml_tensor *lk_linear(const struct lk_net *net, struct ggml_context *ctx,
                              struct ggml_tensor *weight, struct ggml_tensor *bias,
                              struct ggml_tensor *more, struct ggml_tensor *x);

/* Rotate the heads of x [n_tok][n_head][d_head] to their positions as `layer` does; rope_mode is not -1. */
struct ggml_tensor *lk_rope(const struct lk_net *net, struct ggml_context *ctx, int layer,
                            struct ggml_tensor *x, struct ggml_tensor *pos);

/* Fill q, k, v from the normed x; rotated where the family rotates, contiguous. */
void lk_make_qkv(const struct lk_net *net, struct ggml_context *ctx, int layer,
                 struct ggml_tensor *x, struct ggml_tensor *pos, struct lk_pre *out);

/* down(act(gate x) * up x) + more, which may be NULL */
struct ggml_tensor *lk_ffn_silu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *more,
                                      struct ggml_tensor *x);
struct ggml_tensor *lk_ffn_gelu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *more,
                                      struct ggml_tensor *x);
/* down(gelu(up x)) + more, which may be NULL */
struct ggml_tensor *lk_ffn_gelu(const struct lk_net *net, struct ggml_context *ctx,
                                const struct lk_layer *l, struct ggml_tensor *more,
                                struct ggml_tensor *x);

/* ---- whole pieces, as struct lk_family wants them ---- */

/* Token rows times embd_scale. */
struct ggml_tensor *lk_embed_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                    struct ggml_tensor *tok, struct ggml_tensor *pos);

/* RMS norm, q k v. */
struct lk_pre lk_pre_rms(const struct lk_net *net, struct ggml_context *ctx, int layer,
                         struct ggml_tensor *x, struct ggml_tensor *pos);
/* W_O, residual, RMS norm, gated SiLU, residual. */
struct ggml_tensor *lk_post_silu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                 const struct lk_pre *pre, struct ggml_tensor *attn);
/* RMS norm, output matrix, soft cap. */
struct ggml_tensor *lk_head_rms(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);

/* Layer norm, q k v. */
struct lk_pre lk_pre_ln(const struct lk_net *net, struct ggml_context *ctx, int layer,
                        struct ggml_tensor *x, struct ggml_tensor *pos);
/* W_O, residual, layer norm, GELU, residual. */
struct ggml_tensor *lk_post_gelu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                 const struct lk_pre *pre, struct ggml_tensor *attn);
/* Layer norm, output matrix. */
struct ggml_tensor *lk_head_ln(const struct lk_net *net, struct ggml_context *ctx,
                               struct ggml_tensor *x);

/* ---- binding ---- */

/* Token table, final norm and output matrix (the token table where the file has none). */
lk_status lk_bind_ends(struct lk_net *net, struct lk_loader *ld, bool norm_bias, lk_err *err);

/* Attention's projections: q, k, v apart or fused, their biases where present, and W_O.
 * With `fused` only the fused form is accepted. `bias`: must biases be there? */
lk_status lk_bind_attention(struct lk_net *net, struct lk_loader *ld, int layer, bool fused,
                            enum lk_need bias, lk_err *err);

/* All layers of an RMS-norm decoder with a gated feed-forward network. */
lk_status lk_bind_gated_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* All layers of a layer-norm decoder with fused attention and a plain feed-forward network, all with biases. */
lk_status lk_bind_plain_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* Norms of single q and k heads, in all layers. */
lk_status lk_bind_qk_norms(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* Read the norm's epsilon. */
lk_status lk_read_rms_eps(struct lk_net *net, struct lk_loader *ld, lk_err *err);
lk_status lk_read_ln_eps(struct lk_net *net, struct lk_loader *ld, lk_err *err);

#endif
