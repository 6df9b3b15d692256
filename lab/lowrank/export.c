#include "lowrank/export.h"

#include "engine/engine.h"
#include "lowrank/weight_moments.h"
#include "model/gguf_check.h"
#include "model/mapping.h"

#include "gguf.h"

#include <stdio.h>
#include <string.h>

struct export {
    const struct lk_compress *c;
    const struct lk_net *net;
    struct lk_mapping map;
    struct gguf_context *from, *to;
    struct lk_ledger ledger;
    float *row, *old, *new; /* one row; one layer's largest tensor before and after */
    size_t row_bytes, tensor_bytes;
    int32_t n_group, d, n_q, n_kv, n_new; /* channels of queries, of old and of new K or V */
};

enum kind { AS_IT_IS, QKV_WEIGHT, QKV_BIAS, OUTPUT_WEIGHT };

static enum kind kind_of(const char *name, int *layer) {
    int end = 0;
    if (sscanf(name, "blk.%d.%n", layer, &end) != 1 || end == 0) return AS_IT_IS;
    if (strcmp(name + end, "attn_qkv.weight") == 0) return QKV_WEIGHT;
    if (strcmp(name + end, "attn_qkv.bias") == 0) return QKV_BIAS;
    return strcmp(name + end, "attn_output.weight") == 0 ? OUTPUT_WEIGHT : AS_IT_IS;
}

lk_status lk_export_check(const struct lk_net *net, lk_err *err) {
    if (net->hp.rope_mode >= 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%s models rotate their keys: projections cannot be fused into the weights",
                       net->arch);
    for (int layer = 0; layer < net->hp.n_layer; layer++)
        if (!net->layer[layer].wqkv)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "export knows models with q, k and v in one matrix only");
    return LK_OK;
}

static lk_status check(const struct lk_compress *c, const struct lk_net *net, lk_err *err) {
    lk_status status = lk_export_check(net, err);
    for (int layer = 0; status == LK_OK && layer < net->hp.n_layer; layer++) {
        const struct lk_basis *k = lk_compress_basis(c, layer, LK_BASIS_K),
                              *v = lk_compress_basis(c, layer, LK_BASIS_V);
        if (k->n_group == 0 || k->n_group != v->n_group || k->mean || v->mean)
            return lk_fail(err, LK_E_ARG,
                           "export needs bases of keys and values in the same groups, without a "
                           "mean; use --method kvheads");
        for (int g = 0; g < k->n_group; g++)
            if (k->rank[g] != net->hp.d_head || v->rank[g] != net->hp.d_head)
                return lk_fail(err, LK_E_ARG,
                               "export needs ranks of one head's width, %d; leave --rank away",
                               net->hp.d_head);
    }
    return status;
}

/* ---- fusing ---- */

/* out rows [d][n] = basis rows (`line`: width floats apart, from `part` on) x rows [n_part][n], of one group. */
static void project(const float *basis, int width, int from, int n_part, int d, const float *x,
                    int64_t n, float *out) {
    for (int j = 0; j < d; j++) {
        float *to = memset(out + j * n, 0, (size_t)n * sizeof *to);
        for (int c = 0; c < n_part; c++) {
            float f = basis[(size_t)j * width + from + c];
            for (int64_t i = 0; i < n; i++) to[i] += f * x[c * n + i];
        }
    }
}

/* q, k and v of a layer, old [n_q + 2 n_kv][n] into new [n_q + 2 n_new][n]; n = 1 for biases. */
static void fuse_qkv(const struct export *e, int layer, int64_t n) {
    const struct lk_basis *k = lk_compress_basis(e->c, layer, LK_BASIS_K),
                          *v = lk_compress_basis(e->c, layer, LK_BASIS_V);
    int width = k->width, share = e->net->hp.n_head / e->net->hp.n_head_kv, heads = width / e->d;
    const float *old_k = e->old + e->n_q * n, *old_v = old_k + e->n_kv * n;
    float *new_k = e->new + e->n_q *n, *new_v = new_k + e->n_new *n;
    for (int head = 0; head < e->net->hp.n_head; head++) {
        int kv = head / share, g = kv / heads;
        project(k->up + (size_t)g * k->n_comp * width, width, kv % heads * e->d, e->d, e->d,
                e->old + (int64_t)head * e->d * n, n, e->new + (int64_t)head * e->d *n);
    }
    for (int g = 0; g < e->n_group; g++) {
        project(k->down + (size_t)g * k->n_comp * width, width, 0, width, e->d,
                old_k + (int64_t)g * width * n, n, new_k + (int64_t)g * e->d * n);
        project(v->down + (size_t)g * v->n_comp * width, width, 0, width, e->d,
                old_v + (int64_t)g * width * n, n, new_v + (int64_t)g * e->d * n);
    }
}

/* W_O [n_embd][n_q]: the columns of each head times its part of up^T. */
static void fuse_output(const struct export *e, int layer, int64_t n_row) {
    const struct lk_basis *v = lk_compress_basis(e->c, layer, LK_BASIS_V);
    int share = e->net->hp.n_head / e->net->hp.n_head_kv, heads = v->width / e->d;
    for (int64_t i = 0; i < n_row; i++)
        for (int head = 0; head < e->net->hp.n_head; head++) {
            int kv = head / share;
            const float *up =
                            v->up + (size_t)(kv / heads) * v->n_comp * v->width + kv % heads * e->d,
                        *old = e->old + i * e->n_q + head * e->d;
            for (int j = 0; j < e->d; j++) {
                float sum = 0;
                for (int c = 0; c < e->d; c++) sum += old[c] * up[(size_t)j * v->width + c];
                e->new[i * e->n_q + head * e->d + j] = sum;
            }
        }
}

/* ---- the file ---- */

static lk_status open_source(struct export *e, const char *path, lk_err *err) {
    lk_status status = lk_mapping_open(&e->map, path, err);
    if (status == LK_OK) status = lk_gguf_check(e->map.data, e->map.size, &e->ledger, err);
    if (status != LK_OK) return status;
    e->from = gguf_init_from_buffer(e->map.data, e->map.size,
                                    (struct gguf_init_params){.no_alloc = true});
    return e->from ? LK_OK : lk_fail(err, LK_E_FORMAT, "ggml cannot read the GGUF file %s", path);
}

static lk_status take(struct export *e, lk_err *err) {
    const struct lk_hparams *hp = &e->net->hp;
    int64_t most = (int64_t)(e->n_q + 2 * e->n_kv) * hp->n_embd;
    e->row_bytes = (size_t)(hp->n_embd > e->n_q ? hp->n_embd : e->n_q) * sizeof(float);
    e->tensor_bytes = (size_t)most * sizeof(float);
    e->row = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->row_bytes);
    e->old = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->tensor_bytes);
    e->new = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->tensor_bytes);
    return e->row && e->old && e->new
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for a layer's attention weights");
}

static void release(struct export *e) {
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->row, e->row_bytes);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->old, e->tensor_bytes);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->new, e->tensor_bytes);
    if (e->from) gguf_free(e->from);
    if (e->to) gguf_free(e->to);
    lk_mapping_close(&e->map);
}

/* Keys as they are but for the number of KV heads; tensors' names and shapes. */
static void describe(struct export *e) {
    char key[64];
    e->to = gguf_init_empty();
    gguf_set_kv(e->to, e->from);
    gguf_remove_key(e->to, "general.alignment"); /* the default is what is written */
    snprintf(key, sizeof key, "%s.attention.head_count_kv", e->net->arch);
    gguf_set_val_u32(e->to, key, (uint32_t)e->n_group);
    for (int64_t i = 0; i < gguf_get_n_tensors(e->from); i++) {
        int layer;
        const char *name = gguf_get_tensor_name(e->from, i);
        const int64_t *ne = gguf_get_tensor_ne(e->from, i);
        enum kind kind = kind_of(name, &layer);
        struct ggml_tensor t = {.type = kind == AS_IT_IS ? gguf_get_tensor_type(e->from, i)
                                                         : GGML_TYPE_F32,
                                .ne = {ne[0], ne[1], ne[2], ne[3]}};
        if (kind == QKV_WEIGHT) t.ne[1] = e->n_q + 2 * e->n_new;
        if (kind == QKV_BIAS) t.ne[0] = e->n_q + 2 * e->n_new;
        t.nb[0] = ggml_type_size(t.type);
        t.nb[1] = ggml_row_size(t.type, t.ne[0]);
        t.nb[2] = t.nb[1] * (size_t)t.ne[1];
        t.nb[3] = t.nb[2] * (size_t)t.ne[2];
        snprintf(t.name, sizeof t.name, "%s", name);
        gguf_add_tensor(e->to, &t);
    }
}

/* The data of tensor i as it is to be written. */
static lk_status make(struct export *e, int64_t i, const void **data, lk_err *err) {
    int layer = 0;
    enum kind kind = kind_of(gguf_get_tensor_name(e->from, i), &layer);
    *data = e->map.data + gguf_get_data_offset(e->from) + gguf_get_tensor_offset(e->from, i);
    if (kind == AS_IT_IS) return LK_OK;
    const struct lk_layer *l = &e->net->layer[layer];
    const struct ggml_tensor *w = kind == QKV_WEIGHT ? l->wqkv : kind == QKV_BIAS ? l->bqkv : l->wo;
    for (int64_t r = 0; r < w->ne[1]; r++) {
        const float *row = NULL;
        lk_status status = lk_weight_row(w, r, e->row, &row, err);
        if (status != LK_OK) return status;
        memcpy(e->old + r * w->ne[0], row, (size_t)w->ne[0] * sizeof *row);
    }
    if (kind == OUTPUT_WEIGHT)
        fuse_output(e, layer, w->ne[1]);
    else
        fuse_qkv(e, layer, kind == QKV_BIAS ? 1 : w->ne[0]);
    *data = e->new;
    return LK_OK;
}

static lk_status write_all(struct export *e, FILE *file, lk_err *err) {
    static const char zero[64];
    size_t alignment = gguf_get_alignment(e->to);
    bool whole = gguf_write_to_file_ptr(e->to, file, true);
    for (int64_t i = 0; whole && i < gguf_get_n_tensors(e->to); i++) {
        const void *data;
        size_t size = gguf_get_tensor_size(e->to, i),
               padding = (alignment - size % alignment) % alignment;
        lk_status status = make(e, i, &data, err);
        if (status != LK_OK) return status;
        whole = fwrite(data, 1, size, file) == size && fwrite(zero, 1, padding, file) == padding;
    }
    return whole && fflush(file) == 0
               ? LK_OK
               : lk_fail(err, LK_E_IO, "cannot write the model; is the disk full?");
}

lk_status lk_export_kv_heads(const struct lk_compress *c, const char *path, FILE *file,
                             lk_err *err) {
    const struct lk_net *net = lk_compress_model(c)->net;
    lk_status status = check(c, net, err);
    if (status != LK_OK) return status;
    struct export e = {.c = c,
                       .net = net,
                       .d = net->hp.d_head,
                       .n_q = net->hp.n_head * net->hp.d_head,
                       .n_kv = net->hp.n_head_kv * net->hp.d_head};
    e.n_group = lk_compress_basis(c, 0, LK_BASIS_K)->n_group;
    e.n_new = e.n_group * e.d;
    status = open_source(&e, path, err);
    if (status == LK_OK) status = take(&e, err);
    if (status == LK_OK) {
        describe(&e);
        status = write_all(&e, file, err);
    }
    release(&e);
    return status;
}
