/* Multi-token prediction (MTP): a layer after the last one predicts the token after the next.
 *
 *   h    the last layer's normed output for a token
 *   tok  the next token
 *   W [norm(embed(tok)), norm(h)] -> a layer with K and V of its own -> norm -> output matrix
 *
 * The logits are those of the token after tok. The layer's own normed output serves as h for the
 * token after that (DeepSeek-AI 2024, DeepSeek-V3, section 2.2). Its position is that of tok. */
#ifndef LK_MODEL_MTP_H
#define LK_MODEL_MTP_H

#include "model/bind.h"

/* Make the file's layer part of the net, as layer n_layer, once the common keys are read. Errors:
 * LK_E_UNSUPPORTED if the file has none, or several, or the family does not compute them. */
lk_status lk_mtp_enable(struct lk_net *net, lk_err *err);

/* Bind what the layer has besides the tensors of an ordinary one. Errors are those of lk_bind. */
lk_status lk_mtp_bind(struct lk_net *net, struct lk_loader *ld, lk_err *err);

/* tok: i32 [n_tok], h [n_tok][n_embd] -> x of the layer [n_tok][n_embd] */
struct ggml_tensor *lk_mtp_input(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *h);

/* The layer's output x -> its norm, [n_tok][n_embd] */
struct ggml_tensor *lk_mtp_norm(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);

/* The normed output -> logits [n_tok][n_vocab] */
struct ggml_tensor *lk_mtp_head(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *normed);

#endif
