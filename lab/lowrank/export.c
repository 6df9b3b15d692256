/* Writes a model and what a sidecar changes in its weights as a plain GGUF file. Tensors that do
 * not change, metadata and vocabulary are copied. */
#include "lowrank/export.h"

#include "base/atomic_file.h"
#include "base/cxx_call.h"
#include "base/os.h"
#include "cache/project.h"
#include "engine/adapters.h"
#include "lowkey_lab.h"
#include "model/gguf_read.h"
#include "model/net.h"
#include "sidecar/sidecar.h"

#include "gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct exporter {
    const lk_export_opts *opts;
    const char *model_path;
    struct lk_ledger ledger;
    struct lk_net *net; /* of the model, without data */
    struct lk_sidecar *sidecar;
    struct lk_adapter *adapter; /* [n_layer][LK_N_ADAPTED], or NULL */
    struct lk_fusion fusion;
    struct lk_mapping map;
    struct lk_gguf_reader from; /* the model */
    struct gguf_context *to;
    FILE *file;
    bool failed;           /* to write the header */
    float *old, *new;      /* of one weight, before and after */
    uint8_t *data;         /* of the largest changed tensor */
    size_t floats, n_data; /* of old and new; of data */
    float *scratch;
    lk_export_result result;
};

bool lk_export_numbers_name(size_t i, const char **name) {
    static const char *const names[] = {"auto", "q8_0", "f16", "f32"};
    if (i > LK_EXPORT_F32) return false;
    *name = names[i];
    return true;
}

/* ---- what a tensor becomes ---- */

/* A tensor's weights [first, last] of a layer, one after the other; or their biases. */
struct change {
    int layer;
    enum lk_adapted first, last;
    bool bias;
};

/* False if the tensor stays as it is. */
static bool find_change(const struct exporter *e, const char *name, struct change *out) {
    static const struct {
        const char *name;
        enum lk_adapted first, last;
    } weight[] = {{"attn_q.", LK_ADAPT_Q, LK_ADAPT_Q},
                  {"attn_k.", LK_ADAPT_K, LK_ADAPT_K},
                  {"attn_v.", LK_ADAPT_V, LK_ADAPT_V},
                  {"attn_qkv.", LK_ADAPT_Q, LK_ADAPT_V},
                  {"attn_output.", LK_ADAPT_O, LK_ADAPT_O}};
    int layer, end = 0;
    if (sscanf(name, "blk.%4d.%n", &layer, &end) != 1 || end == 0 || layer < 0 ||
        layer >= e->net->hp.n_layer)
        return false;
    for (size_t i = 0; i < sizeof weight / sizeof *weight; i++) {
        size_t len = strlen(weight[i].name);
        if (strncmp(name + end, weight[i].name, len) != 0) continue;
        const char *kind = name + end + len;
        bool bias = strcmp(kind, "bias") == 0, changes = false;
        if (!bias && strcmp(kind, "weight") != 0) return false;
        *out = (struct change){layer, weight[i].first, weight[i].last, bias};
        for (int w = out->first; w <= (int)out->last; w++)
            changes = changes || lk_fusion_changes(&e->fusion, layer, (enum lk_adapted)w, bias);
        return changes;
    }
    return false;
}

static int64_t rows_after(const struct exporter *e, const struct change *c) {
    int64_t n = 0;
    for (int w = c->first; w <= (int)c->last; w++)
        n += lk_fusion_rows_after(&e->fusion, (enum lk_adapted)w);
    return n;
}

static enum ggml_type new_type(const struct exporter *e, const struct change *c,
                               enum ggml_type type) {
    if (c->bias) return GGML_TYPE_F32;
    switch (e->opts->numbers) {
    case LK_EXPORT_Q8_0: return GGML_TYPE_Q8_0;
    case LK_EXPORT_F16: return GGML_TYPE_F16;
    case LK_EXPORT_F32: return GGML_TYPE_F32;
    default: return ggml_is_quantized(type) ? GGML_TYPE_Q8_0 : type;
    }
}

/* ---- checks ---- */

static lk_status fail_bases(const struct exporter *e, const char *reason, lk_err *err) {
    return e->adapter ? lk_fail(err, LK_E_UNSUPPORTED,
                                "the sidecar's bases would be lost: %s; to export the adapters "
                                "alone, which were trained for these bases, give --adapters-only",
                                reason)
                      : lk_fail(err, LK_E_UNSUPPORTED,
                                "the sidecar's bases would be lost: %s; run the model with "
                                "--sidecar instead",
                                reason);
}

/* The first side and layer without a basis that can be fused, as a reason; NULL if none is. */
static const char *why_not_fused(const struct lk_sidecar *s, const struct lk_hparams *hp) {
    if (hp->rope_mode >= 0)
        return "the model rotates its keys after W_K, so bases cannot be multiplied into its "
               "weights";
    for (int i = 0; i < hp->n_layer; i++) {
        const struct lk_basis *k = &s->basis[LK_BASIS_K][i], *v = &s->basis[LK_BASIS_V][i];
        if (k->n_group == 0 || k->n_group != v->n_group || k->mean || v->mean ||
            k->n_group != s->basis[LK_BASIS_K][0].n_group)
            return "a plain model needs bases of K and V in the same groups in all layers, "
                   "without a mean (compress --method kvheads)";
        for (int g = 0; g < k->n_group; g++)
            if (k->rank[g] != hp->d_head || v->rank[g] != hp->d_head)
                return "a plain model needs ranks of one head's width (compress --method kvheads "
                       "without --rank and --quantum)";
    }
    return NULL;
}

/* Decide what is fused. */
static lk_status plan_fusion(struct exporter *e, lk_err *err) {
    const struct lk_sidecar *s = e->sidecar;
    bool bases = false, less = false;
    e->fusion = (struct lk_fusion){.hp = &e->net->hp, .adapter = e->adapter};
    for (size_t i = 0; i < s->n_tensor; i++) less = less || strstr(s->tensor[i].name, ".less.");
    for (int side = 0; side < LK_N_BASIS; side++)
        for (int i = 0; i < e->net->hp.n_layer; i++) bases = bases || s->basis[side][i].n_group > 0;
    if (e->opts->adapters_only && !e->adapter)
        return lk_fail(err, LK_E_ARG,
                       "the sidecar has no adapters; make them with `lowkey train "
                       "lora`");
    if (e->opts->adapters_only) return LK_OK;
    if (less)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the sidecar's LESS networks would be lost: a plain model cannot have "
                       "them; %s",
                       e->adapter ? "to export the adapters alone, give --adapters-only"
                                  : "run the model with --sidecar instead");
    if (!bases && !e->adapter)
        return lk_fail(err, LK_E_ARG, "the sidecar has neither adapters nor bases to export");
    if (!bases) return LK_OK;
    const char *reason = why_not_fused(s, &e->net->hp);
    if (reason) return fail_bases(e, reason, err);
    e->fusion.k = s->basis[LK_BASIS_K];
    e->fusion.v = s->basis[LK_BASIS_V];
    return LK_OK;
}

/* Check the types that changed tensors get, and count what they need. They have the shapes of the
 * model's weights: lk_net_open accepts no tensor that it does not know. */
static lk_status plan_tensors(struct exporter *e, lk_err *err) {
    for (int64_t i = 0; i < gguf_get_n_tensors(e->from.gguf); i++) {
        struct change c;
        if (!find_change(e, gguf_get_tensor_name(e->from.gguf, i), &c)) continue;
        const int64_t *ne = gguf_get_tensor_ne(e->from.gguf, i);
        enum ggml_type type = new_type(e, &c, gguf_get_tensor_type(e->from.gguf, i));
        int64_t n_col = c.bias ? 1 : ne[0];
        if (!c.bias && n_col % ggml_blck_size(type) != 0)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "rows of %d numbers cannot be stored as %s; give --type f16", (int)n_col,
                           ggml_type_name(type));
        size_t size = ggml_row_size(type, n_col) * (size_t)rows_after(e, &c);
        if (size > e->n_data) e->n_data = size;
        for (int w = c.first; w <= (int)c.last; w++) {
            size_t n = (size_t)lk_fusion_rows_before(&e->fusion, (enum lk_adapted)w) * n_col;
            if (n > e->floats) e->floats = n;
        }
        e->result.n_changed++;
    }
    e->result.n_tensor = gguf_get_n_tensors(e->from.gguf);
    e->result.n_head_kv = lk_fusion_heads(&e->fusion);
    return LK_OK;
}

/* ---- the file ---- */

/* Make e->to: all keys, and the names, types and shapes of all tensors. May throw. */
static void describe_tensors(void *arg) {
    struct exporter *e = arg;
    const struct gguf_context *from = e->from.gguf;
    char key[64];
    e->to = gguf_init_empty();
    gguf_set_kv(e->to, from);
    gguf_remove_key(e->to, "general.alignment"); /* we write with the default alignment */
    snprintf(key, sizeof key, "%s.attention.head_count_kv", e->net->arch);
    if (e->fusion.k) gguf_set_val_u32(e->to, key, (uint32_t)lk_fusion_heads(&e->fusion));
    for (int64_t i = 0; i < gguf_get_n_tensors(from); i++) {
        struct change c;
        const char *name = gguf_get_tensor_name(from, i);
        const int64_t *ne = gguf_get_tensor_ne(from, i);
        struct ggml_tensor t = {.type = gguf_get_tensor_type(from, i),
                                .ne = {ne[0], ne[1], ne[2], ne[3]}};
        if (find_change(e, name, &c)) {
            t.type = new_type(e, &c, t.type);
            t.ne[c.bias ? 0 : 1] = rows_after(e, &c);
        }
        t.nb[0] = ggml_type_size(t.type);
        t.nb[1] = ggml_row_size(t.type, t.ne[0]);
        t.nb[2] = t.nb[1] * (size_t)t.ne[1];
        t.nb[3] = t.nb[2] * (size_t)t.ne[2];
        snprintf(t.name, sizeof t.name, "%s", name);
        gguf_add_tensor(e->to, &t);
    }
}

/* n numbers of a type as floats. */
static void to_floats(enum ggml_type type, const void *x, int64_t n, float *out) {
    if (type == GGML_TYPE_F32)
        memcpy(out, x, (size_t)n * sizeof *out);
    else
        ggml_get_type_traits(type)->to_float(x, out, n);
}

/* The new data of tensor i, borrowed until the next call. */
static lk_status tensor_data(struct exporter *e, int64_t i, const void **data, lk_err *err) {
    struct change c;
    const char *name = gguf_get_tensor_name(e->from.gguf, i);
    const uint8_t *old =
        e->map.data + gguf_get_data_offset(e->from.gguf) + gguf_get_tensor_offset(e->from.gguf, i);
    enum ggml_type type = gguf_get_tensor_type(e->from.gguf, i),
                   to = gguf_get_tensor_type(e->to, i);
    uint8_t *out = e->data;
    *data = old;
    if (!find_change(e, name, &c)) return LK_OK;
    int64_t n_col = c.bias ? 1 : gguf_get_tensor_ne(e->from.gguf, i)[0];
    for (int w = c.first; w <= (int)c.last; w++) {
        enum lk_adapted which = (enum lk_adapted)w;
        int64_t before = lk_fusion_rows_before(&e->fusion, which),
                after = lk_fusion_rows_after(&e->fusion, which), n = after * n_col;
        to_floats(type, old, before * n_col, e->old);
        if (!lk_fusion_apply(&e->fusion, c.layer, which, c.bias, n_col, e->old, e->scratch, e->new))
            return lk_fail(err, LK_E_FORMAT,
                           "the sidecar makes numbers of %s too large; make it again", name);
        if (to == GGML_TYPE_F32)
            memcpy(out, e->new, (size_t)n * sizeof *e->new);
        else
            ggml_quantize_chunk(to, e->new, out, 0, after, n_col, NULL);
        old += ggml_row_size(type, before * n_col);
        out += ggml_row_size(to, n);
    }
    *data = e->data;
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
    uint64_t done = 0;
    bool written = !e->failed;
    for (int64_t i = 0; written && i < gguf_get_n_tensors(e->to); i++) {
        const void *data;
        size_t size = gguf_get_tensor_size(e->to, i),
               padding = (alignment - size % alignment) % alignment;
        if (e->opts->progress && !e->opts->progress(e->opts->user, done, e->map.size))
            return lk_fail(err, LK_E_CANCELLED, "the export was cancelled");
        lk_status status = tensor_data(e, i, &data, err);
        if (status) return status;
        written =
            fwrite(data, 1, size, e->file) == size && fwrite(zero, 1, padding, e->file) == padding;
        done += gguf_get_tensor_size(e->from.gguf, i);
        lk_mapping_drop_pages(&e->map,
                              e->map.data + gguf_get_data_offset(e->from.gguf) +
                                  gguf_get_tensor_offset(e->from.gguf, i),
                              gguf_get_tensor_size(e->from.gguf, i));
    }
    return written && fflush(e->file) == 0
               ? LK_OK
               : lk_fail(err, LK_E_IO, "cannot write the model; check for free disk space");
}

/* ---- opening and writing ---- */

static lk_status exporter_open(struct exporter *e, const char *sidecar_path, lk_err *err) {
    struct lk_net_opts header_only = {.header_only = true};
    struct lk_ledger *ledger = &e->ledger;
    lk_status status = lk_net_open(&e->net, e->model_path, &header_only, ledger, err);
    if (status) return status;
    const struct lk_hparams *hp = &e->net->hp;
    struct lk_sidecar_model of = {e->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head};
    status = lk_sidecar_open(&e->sidecar, sidecar_path, &of, ledger, err);
    if (!status) status = lk_adapters_new(&e->adapter, e->sidecar, hp, ledger, err);
    if (!status) status = plan_fusion(e, err);
    if (!status) status = lk_gguf_open(&e->map, &e->from, e->model_path, ledger, err);
    if (!status) status = plan_tensors(e, err);
    if (status) return status;
    e->old = lk_alloc(ledger, LK_FOR_SCRATCH, e->floats * sizeof *e->old);
    e->new = lk_alloc(ledger, LK_FOR_SCRATCH, e->floats * sizeof *e->new);
    e->data = lk_alloc(ledger, LK_FOR_SCRATCH, e->n_data);
    e->scratch =
        lk_alloc(ledger, LK_FOR_SCRATCH, lk_fusion_scratch_floats(&e->fusion) * sizeof *e->scratch);
    if (!e->old || !e->new || !e->data || !e->scratch)
        return lk_fail(err, LK_E_NOMEM, "no memory for a layer's attention weights");
    return lk_cxx_call(describe_tensors, e, err);
}

static void exporter_close(struct exporter *e) {
    struct lk_ledger *ledger = &e->ledger;
    size_t n_scratch = e->scratch ? lk_fusion_scratch_floats(&e->fusion) : 0;
    lk_release(ledger, LK_FOR_SCRATCH, e->old, e->floats * sizeof *e->old);
    lk_release(ledger, LK_FOR_SCRATCH, e->new, e->floats * sizeof *e->new);
    lk_release(ledger, LK_FOR_SCRATCH, e->data, e->n_data);
    lk_release(ledger, LK_FOR_SCRATCH, e->scratch, n_scratch * sizeof *e->scratch);
    if (e->from.gguf) gguf_free(e->from.gguf);
    if (e->to) gguf_free(e->to);
    lk_mapping_close(&e->map);
    if (e->net) lk_adapters_free(e->adapter, &e->net->hp, ledger);
    lk_sidecar_close(e->sidecar);
    lk_net_free(e->net, ledger);
}

lk_status lk_export(const char *model_path, const char *sidecar_path, const lk_export_opts *opts,
                    const char *path, lk_export_result *result, lk_err *err) {
    struct exporter e = {.opts = opts, .model_path = model_path};
    struct lk_atomic_file f;
    if (lk_os_is_same_file(path, model_path) || lk_os_is_same_file(path, sidecar_path))
        return lk_fail(err, LK_E_ARG, "%s is read by the export; write to another file", path);
    lk_status status = exporter_open(&e, sidecar_path, err);
    if (!status) status = lk_atomic_file_open_public(&f, path, err);
    if (!status) {
        e.file = f.file;
        status = lk_cxx_call(write_header, &e, err);
        if (!status) status = write_tensors(&e, err);
        status = lk_atomic_file_close(&f, status, err);
    }
    if (!status) *result = e.result;
    exporter_close(&e);
    return status;
}

/* ---- fusion: adapters and bases, multiplied into attention weights ---- */

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

/* The rows of K or V become rows of the groups. */
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
