/* What a sidecar changes in the attention weights of a plain model, for tests; lowkey_lab.h has the
 * interface of lk_export.
 *
 * Adapters are added (model/adapter.h). Bases of rank d_head turn a group of KV heads into one, if
 * no RoPE stands between projections and scores: `down` is multiplied into W_K and W_V and their
 * biases, `up` into W_Q and W_O ("Effectively Compress KV Heads for LLM", section 3.3, equations 11
 * to 14). */
#ifndef LK_LOWRANK_EXPORT_H
#define LK_LOWRANK_EXPORT_H

#include "model/adapter.h"
#include "model/hparams.h"
#include "sidecar/basis.h"

struct lk_fusion {
    const struct lk_hparams *hp;
    const struct lk_adapter *adapter; /* [n_layer][LK_N_ADAPTED], or NULL */
    const struct lk_basis *k, *v;     /* [n_layer], or both NULL: heads stay as they are */
};

/* KV heads afterwards. */
int32_t lk_fusion_heads(const struct lk_fusion *f);

/* Rows of a weight, which are the entries of its bias, before and after. */
int32_t lk_fusion_rows_before(const struct lk_fusion *f, enum lk_adapted which);
int32_t lk_fusion_rows_after(const struct lk_fusion *f, enum lk_adapted which);

/* Whether a weight of a layer, or its bias, changes at all. */
bool lk_fusion_changes(const struct lk_fusion *f, int layer, enum lk_adapted which, bool bias);

/* Change a weight w [rows before][n_col], or its bias with n_col = 1: out [rows after][n_col].
 * Destroys w. False if a number leaves the range of half floats. scratch: of
 * lk_fusion_scratch_floats. */
bool lk_fusion_apply(const struct lk_fusion *f, int layer, enum lk_adapted which, bool bias,
                     int64_t n_col, float *w, float *scratch, float *out);
size_t lk_fusion_scratch_floats(const struct lk_fusion *f);

#endif
