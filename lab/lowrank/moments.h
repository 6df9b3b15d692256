/* Sums over rows, from which bases are computed: the number of rows, their sum, and their second
 * moments sum x x^T. A row consists of n_group parts of `width` numbers. Parts of different groups
 * are not multiplied with each other. */
#ifndef LK_LOWRANK_MOMENTS_H
#define LK_LOWRANK_MOMENTS_H

#include "base/err.h"
#include "base/ledger.h"
#include "model/net.h"
#include "sidecar/basis.h"

#include <stdbool.h>
#include <stdio.h>

struct lk_moments {
    int32_t n_group, width;
    uint64_t n;     /* rows */
    double *sum;    /* [n_group][width] */
    double *second; /* [n_group][width][width], only the lower triangle; follows `sum` in memory */
};

/* Memory of `ledger`, all zero. */
lk_status lk_moments_new(struct lk_moments *m, int n_group, int width, struct lk_ledger *ledger,
                         lk_err *err);
void lk_moments_free(struct lk_moments *m, struct lk_ledger *ledger);

/* Add `rows` rows to group g: x [rows][width] with row stride `stride`. Call it for every group
 * with the same number of rows, then count them once. */
void lk_moments_add(struct lk_moments *m, int g, const double *x, int64_t rows, int64_t stride);
void lk_moments_count(struct lk_moments *m, uint64_t rows);

/* Write and read everything except the shape, which must be set, and continue `hash` (FNV-1a) over
 * it. False if the file ends early or cannot be written. */
bool lk_moments_write(const struct lk_moments *m, FILE *file, uint64_t *hash);
bool lk_moments_read(struct lk_moments *m, FILE *file, uint64_t *hash);

/* ---- moments of weights ----
 *
 * For bases that need no text, and for errors as the residual stream sees them.
 */

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
