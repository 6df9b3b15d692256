/* Adapters and bases, multiplied into attention weights. */
#include "lowrank/fusion.h"

#include "cache/basis_rows.h"
#include "engine/adapters.h"

#include <math.h>
#include <string.h>

int32_t lk_fusion_heads(const struct lk_fusion *f) {
    return f->k ? f->k[0].n_group : f->hp->n_head_kv;
}

int32_t lk_fusion_rows_before(const struct lk_fusion *f, enum lk_adapted which) {
    return lk_adapter_outputs(f->hp, which);
}

int32_t lk_fusion_rows_after(const struct lk_fusion *f, enum lk_adapted which) {
    bool fewer = which == LK_ADAPT_K || which == LK_ADAPT_V;
    return fewer ? lk_fusion_heads(f) * f->hp->d_head : lk_fusion_rows_before(f, which);
}

static const struct lk_adapter *adapter_of(const struct lk_fusion *f, int layer,
                                           enum lk_adapted which) {
    const struct lk_adapter *adapter = f->adapter;
    if (adapter) adapter += layer * LK_N_ADAPTED + which;
    return adapter && adapter->rank ? adapter : NULL;
}

bool lk_fusion_changes(const struct lk_fusion *f, int layer, enum lk_adapted which, bool bias) {
    if (bias) return f->k && which != LK_ADAPT_O;
    return f->k || adapter_of(f, layer, which);
}

size_t lk_fusion_scratch_floats(const struct lk_fusion *f) {
    size_t max = (size_t)f->hp->n_head_kv * f->hp->d_head; /* a row of a basis */
    for (int i = 0; f->adapter && i < f->hp->n_layer * LK_N_ADAPTED; i++) {
        size_t n =
            lk_adapter_scratch_floats(&f->adapter[i], lk_adapter_inputs(f->hp, i % LK_N_ADAPTED));
        if (n > max) max = n;
    }
    return max;
}

/* ---- bases ---- */

/* out [d][n] = b x: x has `n_part` rows of n, and b is columns [from, from + n_part) of the first d
 * components of group g. */
static void multiply_rows(const struct lk_basis *basis, enum lk_basis_factor factor, int g,
                          int from, int n_part, int d, const float *x, int64_t n, float *scratch,
                          float *out) {
    for (int j = 0; j < d; j++) {
        const float *b = lk_basis_row(basis, factor, g, j, from, n_part, scratch);
        float *to = memset(out + j * n, 0, (size_t)n * sizeof *to);
        for (int c = 0; c < n_part; c++)
            for (int64_t i = 0; i < n; i++) to[i] += b[c] * x[c * n + i];
    }
}

/* The rows of K or V become those of the groups. */
static void fuse_heads(const struct lk_basis *basis, int d, const float *x, int64_t n,
                       float *scratch, float *out) {
    for (int g = 0; g < basis->n_group; g++)
        multiply_rows(basis, LK_BASIS_DOWN, g, 0, basis->width, d,
                      x + (int64_t)g * basis->width * n, n, scratch, out + (int64_t)g * d * n);
}

/* Each query head is multiplied by its KV head's part of K's `up`. */
static void fuse_queries(const struct lk_fusion *f, const struct lk_basis *k, const float *x,
                         int64_t n, float *scratch, float *out) {
    int d = f->hp->d_head, share = f->hp->n_head / f->hp->n_head_kv, heads = k->width / d;
    for (int head = 0; head < f->hp->n_head; head++) {
        int kv = head / share;
        multiply_rows(k, LK_BASIS_UP, kv / heads, kv % heads * d, d, d, x + (int64_t)head * d * n,
                      n, scratch, out + (int64_t)head * d * n);
    }
}

/* The columns of each query head in W_O are multiplied by its KV head's part of up^T. */
static void fuse_output(const struct lk_fusion *f, const struct lk_basis *v, const float *x,
                        float *scratch, float *out) {
    int d = f->hp->d_head, share = f->hp->n_head / f->hp->n_head_kv, heads = v->width / d;
    int64_t n_col = (int64_t)f->hp->n_head * d, n_row = f->hp->n_embd;
    for (int head = 0; head < f->hp->n_head; head++)
        for (int j = 0; j < d; j++) {
            int kv = head / share;
            const float *up =
                lk_basis_row(v, LK_BASIS_UP, kv / heads, j, kv % heads * d, d, scratch);
            for (int64_t i = 0; i < n_row; i++) {
                const float *from = x + i * n_col + head * d;
                float sum = 0;
                for (int c = 0; c < d; c++) sum += from[c] * up[c];
                out[i * n_col + head * d + j] = sum;
            }
        }
}

bool lk_fusion_apply(const struct lk_fusion *f, int layer, enum lk_adapted which, bool bias,
                     int64_t n_col, float *w, float *scratch, float *out) {
    const float max_half = 65504;
    const struct lk_adapter *adapter = bias ? NULL : adapter_of(f, layer, which);
    int64_t n_before = lk_fusion_rows_before(f, which) * n_col,
            n_after = lk_fusion_rows_after(f, which) * n_col;
    if (adapter && !lk_adapter_add(adapter, n_before / n_col, n_col, scratch, w)) return false;
    if (!f->k || (bias && which == LK_ADAPT_O))
        memcpy(out, w, (size_t)n_after * sizeof *out);
    else if (which == LK_ADAPT_Q)
        fuse_queries(f, &f->k[layer], w, n_col, scratch, out);
    else if (which == LK_ADAPT_O)
        fuse_output(f, &f->v[layer], w, scratch, out);
    else
        fuse_heads(which == LK_ADAPT_K ? &f->k[layer] : &f->v[layer], f->hp->d_head, w, n_col,
                   scratch, out);
    for (int64_t i = 0; i < n_after; i++)
        if (!(fabsf(out[i]) <= max_half)) return false;
    return true;
}
