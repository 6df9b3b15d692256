/* Attention of a prompt to its own exact rows by ggml's operator, on a device.
 *
 * Rows of K and of V of a layer are f16 [n_row][width]. With latent attention there is one tensor,
 * since a row of V is a part of the key: channels of V, then of K. */
#ifndef LK_MODEL_EXACT_ATTENTION_H
#define LK_MODEL_EXACT_ATTENTION_H

#include "model/net.h"

/* Numbers of such a row; 0: there is none. k: of K. */
size_t lk_exact_width(const struct lk_hparams *hp, struct lk_layer_heads heads, bool k);

/* The attention of queries q [n_tok][n_head][d_query] to rows [first, end) of tensors that have K
 * and V: [n_tok][n_head * d_head]. mask: f16 [n_tok][end - first], contiguous: 0 for a row that a
 * token sees, or with ALiBi the negative distance; else -INFINITY. sinks: f32 [n_head] or NULL. */
struct ggml_tensor *lk_exact_attention(const struct lk_hparams *hp, struct ggml_context *ctx,
                                       struct lk_layer_heads heads, struct ggml_tensor *q,
                                       struct ggml_tensor *k, struct ggml_tensor *v, size_t first,
                                       size_t end, struct ggml_tensor *mask,
                                       struct ggml_tensor *sinks);

/* Why the model's device cannot do that next to commands of a struct lk_device; static. NULL: it
 * can, or the model has none. ledger: for a moment. */
const char *lk_exact_attention_refused(const struct lk_net *net, struct lk_ledger *ledger);

#endif
