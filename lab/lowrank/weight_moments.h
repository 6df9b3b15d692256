/* Moments of weights: for bases that need no text, and for errors as the residual stream sees them.
 */
#ifndef LK_LOWRANK_WEIGHT_MOMENTS_H
#define LK_LOWRANK_WEIGHT_MOMENTS_H

#include "lowrank/moments.h"
#include "model/net.h"
#include "sidecar/basis.h"

/* Row i of a weight tensor as floats: in place, or dequantized into buf [ne[0]]. LK_E_UNSUPPORTED
 * if the tensor was repacked. */
lk_status lk_weight_row(const struct ggml_tensor *w, int64_t i, float *buf, const float **row,
                        lk_err *err);

/* Add W W^T of a layer's key (before RoPE) or value projection to empty moments. These are the
 * moments of the rows if the inputs had the identity as their second moment. LK_E_UNSUPPORTED for
 * keys that are normalized, and for repacked weights. */
lk_status lk_weight_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            enum lk_basis_side side, struct lk_ledger *ledger, lk_err *err);

/* Add, for each KV head, W_O^T W_O over the columns of its query heads: m has n_head_kv groups of
 * d_head channels. */
lk_status lk_output_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            struct lk_ledger *ledger, lk_err *err);

#endif
