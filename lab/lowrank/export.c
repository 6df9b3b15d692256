/* Fuses bases into attention weights, and copies everything else of a GGUF file. */
#include "lowrank/export.h"

#include "base/cxx_call.h"
#include "lowrank/weight_moments.h"
#include "model/gguf_read.h"

#include "gguf.h"

#include <string.h>

/* ---- checks ---- */

lk_status lk_export_check(const struct lk_net *net, lk_err *err) {
    if (net->hp.rope_mode >= 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%s models rotate their keys: projections cannot be fused into the weights",
                       net->arch);
    for (int layer = 0; layer < net->hp.n_layer; layer++)
        if (!net->layer[layer].wqkv)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "export supports only models with q, k and v in one matrix");
    return LK_OK;
}

lk_status lk_export_check_bases(const struct lk_export *export, lk_err *err) {
    const struct lk_net *net = export->net;
    lk_status status = lk_export_check(net, err);
    for (int layer = 0; status == LK_OK && layer < net->hp.n_layer; layer++) {
        const struct lk_basis *k = export->k ? &export->k[layer].basis : NULL,
                              *v = export->v ? &export->v[layer].basis : NULL;
        if (!k || !v || k->n_group != v->n_group || k->mean || v->mean)
            return lk_fail(err, LK_E_ARG,
                           "export needs bases of K and V in the same groups, without a mean; use "
                           "--method kvheads");
        for (int g = 0; g < k->n_group; g++)
            if (k->rank[g] != net->hp.d_head || v->rank[g] != net->hp.d_head)
                return lk_fail(err, LK_E_ARG,
                               "export needs ranks of one head's width, %d; remove --rank",
                               net->hp.d_head);
    }
    return status;
}

/* ---- fusing ---- */

struct exporter {
    const struct lk_export *export;
    const struct lk_net *net;
    struct lk_mapping map;
    struct lk_gguf_reader from; /* the model */
    struct gguf_context *to;
    FILE *file;
    bool failed; /* to write the header */
    struct lk_ledger ledger;
    float *row;       /* one row */
    float *src, *dst; /* one layer's largest tensor, before and after */
    size_t row_bytes, tensor_bytes;
    int32_t n_group;          /* new KV heads */
    int32_t d;                /* channels of a head */
    int32_t n_q, n_kv, n_new; /* channels of the queries, of the old and of the new K or V */
};

/* out [d][n] = b x, with x [n_part][n] and b the columns [from, from + n_part) of the first d rows
 * of a matrix `basis` of `width` columns. */
static void project_rows(const float *basis, int width, int from, int n_part, int d, const float *x,
                         int64_t n, float *out) {
    for (int j = 0; j < d; j++) {
        float *to = memset(out + j * n, 0, (size_t)n * sizeof *to);
        for (int c = 0; c < n_part; c++) {
            float f = basis[(size_t)j * width + from + c];
            for (int64_t i = 0; i < n; i++) to[i] += f * x[c * n + i];
        }
    }
}

/* q, k and v of a layer: e->src [n_q + 2 n_kv][n] into e->dst [n_q + 2 n_new][n]; n = 1 for
 * biases. */
static void fuse_qkv(const struct exporter *e, int layer, int64_t n) {
    const struct lk_basis *k = &e->export->k[layer].basis, *v = &e->export->v[layer].basis;
    int width = k->width, share = e->net->hp.n_head / e->net->hp.n_head_kv, heads = width / e->d;
    const float *old_k = e->src + e->n_q * n, *old_v = old_k + e->n_kv * n;
    float *new_k = e->dst + e->n_q * n, *new_v = new_k + e->n_new * n;
    for (int head = 0; head < e->net->hp.n_head; head++) {
        int kv = head / share, g = kv / heads;
        project_rows(k->up.f32 + (size_t)g * k->n_comp * width, width, kv % heads * e->d, e->d,
                     e->d, e->src + (int64_t)head * e->d * n, n, e->dst + (int64_t)head * e->d * n);
    }
    for (int g = 0; g < e->n_group; g++) {
        project_rows(k->down.f32 + (size_t)g * k->n_comp * width, width, 0, width, e->d,
                     old_k + (int64_t)g * width * n, n, new_k + (int64_t)g * e->d * n);
        project_rows(v->down.f32 + (size_t)g * v->n_comp * width, width, 0, width, e->d,
                     old_v + (int64_t)g * width * n, n, new_v + (int64_t)g * e->d * n);
    }
}

/* W_O [n_embd][n_q]: the columns of each head times its part of up^T. */
static void fuse_output(const struct exporter *e, int layer, int64_t n_row) {
    const struct lk_basis *v = &e->export->v[layer].basis;
    int share = e->net->hp.n_head / e->net->hp.n_head_kv, heads = v->width / e->d;
    for (int64_t i = 0; i < n_row; i++)
        for (int head = 0; head < e->net->hp.n_head; head++) {
            int kv = head / share;
            const float *up =
                v->up.f32 + (size_t)(kv / heads) * v->n_comp * v->width + kv % heads * e->d;
            const float *old = e->src + i * e->n_q + head * e->d;
            for (int j = 0; j < e->d; j++) {
                float sum = 0;
                for (int c = 0; c < e->d; c++) sum += old[c] * up[(size_t)j * v->width + c];
                e->dst[i * e->n_q + head * e->d + j] = sum;
            }
        }
}

/* ---- the file ---- */

enum tensor_kind { COPIED, QKV_WEIGHT, QKV_BIAS, OUTPUT_WEIGHT };

static enum tensor_kind tensor_kind(const char *name, int *layer) {
    int end = 0;
    if (sscanf(name, "blk.%d.%n", layer, &end) != 1 || end == 0) return COPIED;
    if (strcmp(name + end, "attn_qkv.weight") == 0) return QKV_WEIGHT;
    if (strcmp(name + end, "attn_qkv.bias") == 0) return QKV_BIAS;
    return strcmp(name + end, "attn_output.weight") == 0 ? OUTPUT_WEIGHT : COPIED;
}

static lk_status exporter_open(struct exporter *e, lk_err *err) {
    const char *path = e->export->model_path;
    const struct lk_hparams *hp = &e->net->hp;
    e->d = hp->d_head;
    e->n_q = hp->n_head * hp->d_head;
    e->n_kv = hp->n_head_kv * hp->d_head;
    e->n_group = e->export->k[0].basis.n_group;
    e->n_new = e->n_group * e->d;
    lk_status status = lk_gguf_open(&e->map, &e->from, path, &e->ledger, err);
    if (status != LK_OK) return status;
    e->row_bytes = (size_t)(hp->n_embd > e->n_q ? hp->n_embd : e->n_q) * sizeof(float);
    e->tensor_bytes = (size_t)((int64_t)(e->n_q + 2 * e->n_kv) * hp->n_embd) * sizeof(float);
    e->row = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->row_bytes);
    e->src = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->tensor_bytes);
    e->dst = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->tensor_bytes);
    return e->row && e->src && e->dst
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for a layer's attention weights");
}

static void exporter_close(struct exporter *e) {
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->row, e->row_bytes);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->src, e->tensor_bytes);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->dst, e->tensor_bytes);
    if (e->from.gguf) gguf_free(e->from.gguf);
    if (e->to) gguf_free(e->to);
    lk_mapping_close(&e->map);
}

/* Make e->to: all keys with the new number of KV heads, and the names and shapes of all tensors.
 * May throw. */
static void describe_tensors(void *arg) {
    struct exporter *e = arg;
    const struct gguf_context *from = e->from.gguf;
    char key[64];
    e->to = gguf_init_empty();
    gguf_set_kv(e->to, from);
    gguf_remove_key(e->to, "general.alignment"); /* we write with the default alignment */
    snprintf(key, sizeof key, "%s.attention.head_count_kv", e->net->arch);
    gguf_set_val_u32(e->to, key, (uint32_t)e->n_group);
    for (int64_t i = 0; i < gguf_get_n_tensors(from); i++) {
        int layer;
        const char *name = gguf_get_tensor_name(from, i);
        const int64_t *ne = gguf_get_tensor_ne(from, i);
        enum tensor_kind kind = tensor_kind(name, &layer);
        struct ggml_tensor t = {.type =
                                    kind == COPIED ? gguf_get_tensor_type(from, i) : GGML_TYPE_F32,
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

/* The new data of tensor i, borrowed until the next call. */
static lk_status tensor_data(struct exporter *e, int64_t i, const void **data, lk_err *err) {
    int layer = 0;
    enum tensor_kind kind = tensor_kind(gguf_get_tensor_name(e->from.gguf, i), &layer);
    *data =
        e->map.data + gguf_get_data_offset(e->from.gguf) + gguf_get_tensor_offset(e->from.gguf, i);
    if (kind == COPIED) return LK_OK;
    const struct lk_layer *l = &e->net->layer[layer];
    const struct ggml_tensor *w = kind == QKV_WEIGHT ? l->wqkv : kind == QKV_BIAS ? l->bqkv : l->wo;
    for (int64_t r = 0; r < w->ne[1]; r++) {
        const float *row = NULL;
        lk_status status = lk_weight_row(w, r, e->row, &row, err);
        if (status != LK_OK) return status;
        memcpy(e->src + r * w->ne[0], row, (size_t)w->ne[0] * sizeof *row);
    }
    if (kind == OUTPUT_WEIGHT)
        fuse_output(e, layer, w->ne[1]);
    else
        fuse_qkv(e, layer, kind == QKV_BIAS ? 1 : w->ne[0]);
    *data = e->dst;
    return LK_OK;
}

/* May throw. */
static void write_header(void *arg) {
    struct exporter *e = arg;
    if (!gguf_write_to_file_ptr(e->to, e->file, true)) e->failed = true;
}

static lk_status write_tensors(struct exporter *e, lk_err *err) {
    static const char zero[64];
    size_t alignment = gguf_get_alignment(e->to);
    bool written = !e->failed;
    for (int64_t i = 0; written && i < gguf_get_n_tensors(e->to); i++) {
        const void *data;
        size_t size = gguf_get_tensor_size(e->to, i),
               padding = (alignment - size % alignment) % alignment;
        lk_status status = tensor_data(e, i, &data, err);
        if (status != LK_OK) return status;
        written =
            fwrite(data, 1, size, e->file) == size && fwrite(zero, 1, padding, e->file) == padding;
    }
    return written && fflush(e->file) == 0
               ? LK_OK
               : lk_fail(err, LK_E_IO, "cannot write the model; check for free disk space");
}

lk_status lk_export_kv_heads(const struct lk_export *export, FILE *file, lk_err *err) {
    struct exporter e = {.export = export, .net = export->net, .file = file};
    lk_status status = exporter_open(&e, err);
    if (status == LK_OK) status = lk_cxx_call(describe_tensors, &e, err);
    if (status == LK_OK) status = lk_cxx_call(write_header, &e, err);
    if (status == LK_OK) status = write_tensors(&e, err);
    exporter_close(&e);
    return status;
}
