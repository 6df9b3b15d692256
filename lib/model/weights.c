/* Loads the bound tensors. Each tensor goes to one of several groups, and each group has one
 * buffer: the mapped file, f32 copies, or a repacked layout of ggml's CPU backend. */
#include "model/weights.h"

#include "base/cxx_call.h"
#include "model/many_tokens.h"
#include "model/q4_1_split.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include <string.h>

/* ---- a bound tensor: as in the file, or with adapters added ---- */

/* Data of tensor `id` in the mapped file. */
static const void *file_data(const struct lk_loader *ld, int64_t id) {
    return ld->file.data + gguf_get_data_offset(ld->reader.gguf) +
           gguf_get_tensor_offset(ld->reader.gguf, id);
}

void lk_bound_shape(const struct lk_loader *ld, const struct lk_bind *b, int64_t ne[3]) {
    memcpy(ne, gguf_get_tensor_ne(ld->reader.gguf, b->id), 3 * sizeof *ne);
}

enum ggml_type lk_bound_type(const struct lk_loader *ld, const struct lk_bind *b) {
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
    return b->n_segment > 0 && ggml_is_quantized(type) ? GGML_TYPE_Q8_0 : type;
}

uint64_t lk_bound_adapter_bytes(const struct lk_loader *ld, const struct lk_bind *b) {
    enum ggml_type from = gguf_get_tensor_type(ld->reader.gguf, b->id), to = lk_bound_type(ld, b);
    int64_t n_col = gguf_get_tensor_ne(ld->reader.gguf, b->id)[0];
    uint64_t bytes = 0;
    for (int i = 0; i < b->n_segment; i++)
        if (b->segment[i].adapter)
            bytes +=
                (uint64_t)b->segment[i].n * (ggml_row_size(to, n_col) - ggml_row_size(from, n_col));
    return bytes;
}

static void to_f32(enum ggml_type from, const void *x, int64_t n, float *out) {
    if (from == GGML_TYPE_F32)
        memcpy(out, x, (size_t)n * sizeof *out);
    else
        ggml_get_type_traits(from)->to_float(x, out, n);
}

/* Rows as [n][n_col] numbers of type `from`, written as `to`: equal to `from`, or f32. */
static void keep_rows(enum ggml_type from, const void *x, int64_t n, int64_t n_col,
                      enum ggml_type to, void *out) {
    if (from == to)
        memcpy(out, x, ggml_row_size(from, n_col) * (size_t)n);
    else
        to_f32(from, x, n * n_col, out);
}

/* Write rows x of type `from` with the segment's adapter added. */
static lk_status add_adapter(struct lk_loader *ld, const struct lk_row_segment *segment,
                             enum ggml_type from, const void *x, int64_t n_col, enum ggml_type to,
                             void *out, lk_err *err) {
    int64_t n = segment->n;
    size_t size =
        ((size_t)(n * n_col) + lk_adapter_scratch_floats(segment->adapter, n_col)) * sizeof(float);
    float *w = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!w) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
    to_f32(from, x, n * n_col, w);
    bool finite = lk_adapter_add(segment->adapter, n, n_col, w + n * n_col, w);
    if (to == GGML_TYPE_F32)
        memcpy(out, w, (size_t)(n * n_col) * sizeof *w);
    else
        ggml_quantize_chunk(to, w, out, 0, n, n_col, NULL);
    lk_release(ld->ledger, LK_FOR_OTHER, w, size);
    return finite ? LK_OK
                  : lk_fail(err, LK_E_FORMAT,
                            "the adapters make weights that are too large; train them again with "
                            "'lowkey train lora', or use a smaller scale");
}

/* Write the tensor's data to `out`, as `type`: lk_bound_type, or f32. Pages of the file that are no
 * longer needed are dropped. LK_E_NOMEM; LK_E_FORMAT if an adapter makes a weight too large. */
static lk_status bound_copy(struct lk_loader *ld, const struct lk_bind *b, enum ggml_type type,
                            void *out, lk_err *err) {
    enum ggml_type from = gguf_get_tensor_type(ld->reader.gguf, b->id);
    const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, b->id);
    int64_t n_row = b->use == LK_USE_VECTOR ? ne[0] : ne[1], n_col = ne[0] * ne[1] / n_row;
    struct lk_row_segment whole = {.n = n_row};
    const struct lk_row_segment *segment = b->n_segment ? b->segment : &whole;
    const char *x = file_data(ld, b->id);
    char *to = out;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < (b->n_segment ? b->n_segment : 1); i++) {
        if (segment[i].adapter)
            status = add_adapter(ld, &segment[i], from, x, n_col, type, to, err);
        else
            keep_rows(from, x, segment[i].n, n_col, type, to);
        x += ggml_row_size(from, n_col) * (size_t)segment[i].n;
        to += ggml_row_size(type, n_col) * (size_t)segment[i].n;
    }
    lk_mapping_drop_pages(&ld->file, file_data(ld, b->id),
                          gguf_get_tensor_size(ld->reader.gguf, b->id));
    return status;
}

/* Loads the bound tensors. Each tensor goes to one of several groups, and each group has one
 * buffer: the mapped file, f32 copies, or a repacked layout of ggml's CPU backend. */

enum {
    FROM_FILE = 0, /* tensors as they are in the file: mapped, or copied with no_mmap */
    COPIED = 1,    /* dequantized copies, matrices with adapters, and offsets (q4_1_split.h) */
    ON_DEVICE = 2, /* tensors in the device's memory; matrices with the types of the file */
    REPACKED = 3,  /* first group of a layout that only ggml's CPU matrix products can read */
    MAX_GROUP = 11,
};

/* Tensors in one buffer. */
struct tensor_group {
    ggml_backend_buffer_type_t buft; /* NULL: the mapping itself */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    size_t bytes; /* entered in the ledger, unless header_only */
};

struct lk_weights_map {
    struct lk_mapping file; /* data is NULL with no_mmap */
    struct tensor_group group[MAX_GROUP];
    int n_group;
    bool header_only;                    /* tensors have shapes, but no data */
    ggml_backend_buffer_type_t repacked; /* lk_weights_repacked */
};

/* May throw, if the device is lost. */
static void free_buffer(void *arg) { ggml_backend_buffer_free(arg); }

/* The ledger of a group's memory. */
static struct lk_ledger *ledger_of(const struct lk_weights_map *map, const struct tensor_group *g,
                                   struct lk_ggml_device *device, struct lk_ledger *ledger) {
    return g == &map->group[ON_DEVICE] && device ? &device->ledger : ledger;
}

void lk_weights_free(struct lk_weights_map *map, struct lk_ggml_device *device,
                     struct lk_ledger *ledger) {
    if (!map) return;
    for (int i = 0; i < map->n_group; i++) {
        struct tensor_group *g = &map->group[i];
        if (g->buffer) lk_cxx_call(free_buffer, g->buffer, NULL);
        if (g->ctx) ggml_free(g->ctx);
        if (!map->header_only)
            lk_ledger_remove(ledger_of(map, g, device, ledger), LK_FOR_WEIGHTS, g->bytes);
    }
    lk_mapping_close(&map->file);
    lk_release(ledger, LK_FOR_OTHER, map, sizeof *map);
}

/* True if the device can multiply by a matrix, or by experts, of this type and shape in a buffer of
 * this type. */
static bool is_matmul_supported(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft,
                                enum lk_tensor_use use, enum ggml_type type, const int64_t ne[3]) {
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true});
    if (!ctx) return false;
    enum { N_TOK = 512 }; /* a typical batch */
    struct ggml_tensor *w = ggml_new_tensor_3d(ctx, type, ne[0], ne[1], ne[2]), *product;
    if (use == LK_USE_EXPERTS)
        product = ggml_mul_mat_id(ctx, w, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, ne[0], 1, N_TOK),
                                  ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, N_TOK));
    else
        product = ggml_mul_mat(ctx, w, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, ne[0], N_TOK));
    w->buffer = ggml_backend_buft_alloc_buffer(buft, 0); /* empty: only its type matters */
    bool yes = w->buffer && ggml_backend_dev_supports_op(dev, product);
    if (w->buffer) ggml_backend_buffer_free(w->buffer);
    ggml_free(ctx);
    return yes;
}

/* Add a group for each repacking buffer type of the CPU backend. */
static void add_repack_groups(struct lk_weights_map *map, ggml_backend_dev_t dev) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            reg, "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *list = get ? get(dev) : NULL;
    for (; list && *list && map->n_group < MAX_GROUP; list++)
        map->group[map->n_group++].buft = *list;
}

/* The group and the type that a tensor gets. A matrix whose type is not the file's type is split
 * into a Q4_0 part and offsets (q4_1_split.h). */
struct placement {
    int group;
    enum ggml_type type;
};

/* The repacking group that supports the matrix, -1 if none. */
static int find_repack_group(const struct lk_weights_map *map, ggml_backend_dev_t dev,
                             enum lk_tensor_use use, enum ggml_type type, const int64_t ne[3]) {
    for (int g = REPACKED; g < map->n_group; g++) {
        if (is_matmul_supported(dev, map->group[g].buft, use, type, ne)) return g;
    }
    return -1;
}

static bool is_multiplied(const struct lk_bind *b) {
    return b->use == LK_USE_MATRIX || b->use == LK_USE_EXPERTS;
}

/* For the bound tensor b, with shape ne instead of its own. */
static struct placement choose_placement(const struct lk_weights_map *map,
                                         const struct lk_loader *ld, const struct lk_bind *b,
                                         const int64_t ne[3], ggml_backend_dev_t dev) {
    enum ggml_type type = lk_bound_type(ld, b);
    bool f32 = type != GGML_TYPE_F32 && (b->use == LK_USE_VECTOR || ld->opts.f32);
    if (b->on_device) return (struct placement){ON_DEVICE, f32 ? GGML_TYPE_F32 : type};
    if (f32) return (struct placement){COPIED, GGML_TYPE_F32};
    int as_is = b->n_segment > 0 ? COPIED : FROM_FILE;
    if (!is_multiplied(b)) return (struct placement){as_is, type};
    int g = find_repack_group(map, dev, b->use, type, ne);
    if (g < 0 && type == GGML_TYPE_Q4_1 && b->use == LK_USE_MATRIX) {
        g = find_repack_group(map, dev, b->use, GGML_TYPE_Q4_0, ne);
        if (g >= 0) type = GGML_TYPE_Q4_0;
    }
    return (struct placement){g < 0 ? as_is : g, type};
}

/* Create a tensor in its group, with offsets if it is split. */
static struct ggml_tensor *create_tensor(struct lk_weights_map *map, struct placement place,
                                         enum ggml_type file_type, const int64_t ne[3]) {
    struct ggml_tensor *t =
        ggml_new_tensor_3d(map->group[place.group].ctx, place.type, ne[0], ne[1], ne[2]);
    if (place.group >= REPACKED && place.type != file_type) {
        lk_q4_1_attach_offset(t, ggml_new_tensor_1d(map->group[COPIED].ctx, GGML_TYPE_F16,
                                                    (int64_t)lk_offset_count(ne[0], ne[1])));
    }
    return t;
}

/* The placement of the concatenated matrix. Its group is -1 if the matrices stay separate. */
static struct placement choose_concat_placement(const struct lk_weights_map *map,
                                                const struct lk_loader *ld,
                                                const struct lk_concat *concat,
                                                ggml_backend_dev_t dev) {
    const struct lk_bind *b = &ld->bind[concat->first];
    int64_t ne[3], part[3];
    lk_bound_shape(ld, b, ne);
    struct placement first = choose_placement(map, ld, b, ne, dev);
    ne[1] = 0;
    for (size_t i = 0; i < concat->n; i++) {
        lk_bound_shape(ld, &b[i], part);
        struct placement place = choose_placement(map, ld, &b[i], part, dev);
        bool same_type = lk_bound_type(ld, &b[i]) == lk_bound_type(ld, b);
        if (!same_type || place.group != first.group || place.type != first.type)
            return (struct placement){-1, first.type};
        ne[1] += part[1];
    }
    struct placement whole = choose_placement(map, ld, b, ne, dev);
    return whole.group >= REPACKED ? whole : (struct placement){-1, first.type};
}

/* Create the concatenated matrix. */
static void create_concat_matrix(struct lk_weights_map *map, struct lk_loader *ld,
                                 struct placement place, const struct lk_concat *concat) {
    struct lk_bind *b = &ld->bind[concat->first];
    int64_t rows = 0, ne[3] = {0};
    for (size_t i = 0; i < concat->n; i++) {
        lk_bound_shape(ld, &b[i], ne);
        rows += ne[1];
        b[i].is_concat = true;
    }
    ne[1] = rows;
    *concat->matrix = create_tensor(map, place, lk_bound_type(ld, b), ne);
}

/* Create the concatenated bias. */
static void create_concat_bias(struct lk_weights_map *map, struct lk_loader *ld,
                               const struct lk_concat *concat) {
    struct lk_bind *b = &ld->bind[concat->first + concat->n];
    int64_t n = 0, ne[3];
    for (size_t i = 0; i < concat->n; i++) {
        lk_bound_shape(ld, &b[i], ne);
        n += ne[0];
        b[i].is_concat = true;
    }
    *concat->bias = ggml_new_tensor_2d(map->group[COPIED].ctx, GGML_TYPE_F32, n, 1);
}

static void create_concats(struct lk_weights_map *map, struct lk_loader *ld,
                           ggml_backend_dev_t dev) {
    for (size_t i = 0; i < ld->n_concat; i++) {
        const struct lk_concat *concat = &ld->concat[i];
        if (ld->bind[concat->first].is_elsewhere) continue;
        struct placement place = choose_concat_placement(map, ld, concat, dev);
        if (place.group < 0) continue;
        create_concat_matrix(map, ld, place, concat);
        if (concat->with_bias) create_concat_bias(map, ld, concat);
    }
}

/* Can the place of a matrix multiply by it? */
static lk_status check_matmul(const struct lk_loader *ld, const struct lk_bind *b,
                              struct placement place, const int64_t ne[3], ggml_backend_dev_t cpu,
                              lk_err *err) {
    ggml_backend_dev_t dev =
        b->on_device && ld->device ? ggml_backend_buft_get_device(ld->device->buft) : cpu;
    if (!is_multiplied(b) || place.group >= REPACKED ||
        is_matmul_supported(dev, ggml_backend_dev_buffer_type(dev), b->use, place.type, ne))
        return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "tensor %s has type %s, which %s does not support in matrix products",
                   gguf_get_tensor_name(ld->reader.gguf, b->id), ggml_type_name(place.type),
                   b->on_device ? ld->device->name : "ggml's CPU backend");
}

/* Create every bound tensor in its group's context, without memory. A matrix that is also a table
 * (tied embeddings) is one tensor unless the matrix is repacked. */
static lk_status create_tensors(struct lk_weights_map *map, struct lk_loader *ld,
                                ggml_backend_dev_t dev, lk_err *err) {
    size_t overhead = (2 * ld->n_bind + 1) * ggml_tensor_overhead(); /* tensors and offsets */
    for (int g = 0; g < map->n_group; g++) {
        map->group[g].ctx =
            ggml_init((struct ggml_init_params){.mem_size = overhead, .no_alloc = true});
        if (!map->group[g].ctx)
            return lk_fail(err, LK_E_NOMEM, "not enough memory for the tensor table");
    }
    create_concats(map, ld, dev);
    for (size_t i = 0; i < ld->n_bind; i++) {
        const struct lk_bind *b = &ld->bind[i];
        if (b->is_concat || b->is_elsewhere) continue;
        const char *name = gguf_get_tensor_name(ld->reader.gguf, b->id);
        int64_t ne[3];
        lk_bound_shape(ld, b, ne);
        enum ggml_type type = lk_bound_type(ld, b);
        struct placement place = choose_placement(map, ld, b, ne, dev);
        lk_status status = check_matmul(ld, b, place, ne, dev, err);
        if (status) return status;
        struct ggml_tensor *t = ggml_get_tensor(map->group[place.group].ctx, name);
        if (!t) {
            t = create_tensor(map, place, type, ne);
            if (b->n_segment == 0) ggml_set_name(t, name); /* else copy_adapted finds it */
        }
        *b->dst = t;
    }
    return LK_OK;
}

/* Give the tensors of a group an empty buffer instead of memory, and compute the bytes that they
 * would need: for models that are opened without weights. */
static lk_status measure_group(struct tensor_group *g, ggml_backend_dev_t dev, lk_err *err) {
    struct ggml_tensor *first = ggml_get_first_tensor(g->ctx);
    if (!first) return LK_OK;
    if (g->buft) g->bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(g->ctx, g->buft);
    g->buffer =
        ggml_backend_buft_alloc_buffer(g->buft ? g->buft : ggml_backend_dev_buffer_type(dev), 0);
    if (!g->buffer) return lk_fail(err, LK_E_NOMEM, "not enough memory for a buffer");
    for (struct ggml_tensor *t = first; t; t = ggml_get_next_tensor(g->ctx, t))
        t->buffer = g->buffer;
    return LK_OK;
}

/* Allocate a group's buffer, or point its tensors into the mapped file. */
static lk_status alloc_group(struct lk_weights_map *map, struct lk_loader *ld,
                             struct tensor_group *g, lk_err *err) {
    struct ggml_tensor *first = ggml_get_first_tensor(g->ctx);
    if (!first) return LK_OK;
    if (!g->buft) {
        g->buffer = ggml_backend_cpu_buffer_from_ptr(map->file.data, map->file.size);
        if (!g->buffer) return lk_fail(err, LK_E_NOMEM, "not enough memory for a buffer");
        ggml_backend_buffer_set_usage(g->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        for (struct ggml_tensor *t = first; t; t = ggml_get_next_tensor(g->ctx, t)) {
            int64_t id = gguf_find_tensor(ld->reader.gguf, t->name);
            if (ggml_backend_tensor_alloc(g->buffer, t, (void *)file_data(ld, id)) !=
                GGML_STATUS_SUCCESS) {
                return lk_fail(err, LK_E_NOMEM, "cannot place tensor %s", t->name);
            }
        }
        return LK_OK;
    }
    size_t bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(g->ctx, g->buft);
    bool on_device = g == &map->group[ON_DEVICE];
    if (lk_ledger_add(ledger_of(map, g, ld->device, ld->ledger), LK_FOR_WEIGHTS, bytes)) {
        g->bytes = bytes;
        g->buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->ctx, g->buft);
    }
    if (!g->buffer && on_device)
        return lk_fail(err, LK_E_NOMEM,
                       "%s has not enough memory for %zu MiB of weights; put fewer layers there",
                       ld->device->name, bytes >> 20);
    if (!g->buffer)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", bytes >> 20);
    ggml_backend_buffer_set_usage(g->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (!on_device) lk_advise_huge_pages(ggml_backend_buffer_get_base(g->buffer), bytes);
    return LK_OK;
}

static void dequantize_tensor(struct ggml_tensor *t, enum ggml_type from, const uint8_t *data) {
    ggml_to_float_t to_float = ggml_get_type_traits(from)->to_float;
    size_t row = ggml_row_size(from, t->ne[0]);
    for (int64_t i = 0; i < ggml_nrows(t); i++)
        to_float(data + (size_t)i * row, (float *)t->data + i * t->ne[0], t->ne[0]);
}

static bool is_mapped(const struct lk_weights_map *map, const char *name) {
    return ggml_get_tensor(map->group[FROM_FILE].ctx, name) != NULL;
}

/* Copy rows of the file's type `from` into a matrix, dequantizing, repacking or splitting it. */
static lk_status copy_matrix(struct lk_loader *ld, struct ggml_tensor *t, enum ggml_type from,
                             const void *rows, lk_err *err) {
    size_t size = ggml_nbytes(t);
    if (t->type == from) {
        ggml_backend_tensor_set(t, rows, 0, size);
        return LK_OK;
    }
    void *part = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!part)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
    if (t->type == GGML_TYPE_F32)
        to_f32(from, rows, ggml_nelements(t), part);
    else
        lk_q4_1_split_rows(rows, t->ne[0], t->ne[1], part, lk_q4_1_offset(t)->data);
    ggml_backend_tensor_set(t, part, 0, size);
    lk_release(ld->ledger, LK_FOR_OTHER, part, size);
    return LK_OK;
}

/* Copy the rows of all parts into the concatenated matrix. */
static lk_status copy_concat_matrix(struct lk_loader *ld, const struct lk_concat *concat,
                                    lk_err *err) {
    const struct lk_bind *b = &ld->bind[concat->first];
    struct ggml_tensor *t = *concat->matrix;
    enum ggml_type type = lk_bound_type(ld, b);
    size_t size = ggml_row_size(type, t->ne[0]) * (size_t)t->ne[1], at = 0;
    char *rows = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!rows)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < concat->n; i++) {
        int64_t ne[3];
        lk_bound_shape(ld, &b[i], ne);
        status = bound_copy(ld, &b[i], type, rows + at, err);
        at += ggml_row_size(type, ne[0]) * (size_t)ne[1];
    }
    if (!status) status = copy_matrix(ld, t, type, rows, err);
    lk_release(ld->ledger, LK_FOR_OTHER, rows, size);
    return status;
}

static lk_status copy_concat_bias(struct lk_loader *ld, const struct lk_concat *concat,
                                  lk_err *err) {
    const struct lk_bind *b = &ld->bind[concat->first + concat->n];
    float *to = (*concat->bias)->data;
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < concat->n; i++) {
        int64_t ne[3];
        lk_bound_shape(ld, &b[i], ne);
        status = bound_copy(ld, &b[i], GGML_TYPE_F32, to, err);
        to += ne[0];
    }
    return status;
}

/* Compute the tensors that adapters are added to and that are not concatenated. */
static lk_status copy_adapted(struct lk_loader *ld, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < ld->n_bind; i++) {
        const struct lk_bind *b = &ld->bind[i];
        if (b->n_segment == 0 || b->is_concat || b->is_elsewhere) continue;
        struct ggml_tensor *t = *b->dst;
        enum ggml_type type = t->type == GGML_TYPE_F32 ? t->type : lk_bound_type(ld, b);
        size_t size = ggml_row_size(type, t->ne[0]) * (size_t)t->ne[1];
        void *rows = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
        if (!rows)
            return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
        status = bound_copy(ld, b, type, rows, err);
        if (!status) status = copy_matrix(ld, t, type, rows, err);
        lk_release(ld->ledger, LK_FOR_OTHER, rows, size);
    }
    return status;
}

static lk_status copy_concats(struct lk_loader *ld, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < ld->n_concat; i++) {
        const struct lk_concat *concat = &ld->concat[i];
        if (!ld->bind[concat->first].is_concat) continue;
        status = copy_concat_matrix(ld, concat, err);
        if (!status && concat->with_bias) status = copy_concat_bias(ld, concat, err);
    }
    return status;
}

/* Copy all tensors that are not mapped and report progress in bytes. */
static lk_status copy_tensors(struct lk_weights_map *map, struct lk_loader *ld, lk_err *err) {
    uint64_t done = 0, total = 0;
    for (int g = 0; g < map->n_group; g++) {
        for (struct ggml_tensor *t = ggml_get_first_tensor(map->group[g].ctx); t;
             t = ggml_get_next_tensor(map->group[g].ctx, t)) {
            total += ggml_nbytes(t);
        }
    }
    for (int g = 0; g < map->n_group; g++) {
        bool mapped = !map->group[g].buft;
        for (struct ggml_tensor *t = ggml_get_first_tensor(map->group[g].ctx); t;
             t = ggml_get_next_tensor(map->group[g].ctx, t)) {
            if (ld->opts.progress && !ld->opts.progress(ld->opts.user, done, total)) {
                return lk_fail(err, LK_E_CANCELLED, "loading the model was cancelled");
            }
            done += ggml_nbytes(t);
            int64_t id = gguf_find_tensor(ld->reader.gguf, t->name);
            if (mapped || id < 0) continue; /* concatenated and adapted tensors, and offsets */
            const void *data = file_data(ld, id);
            enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, id);
            if (g == COPIED) {
                dequantize_tensor(t, type, data);
            } else {
                lk_status status = copy_matrix(ld, t, type, data, err);
                if (status) return status;
            }
            if (map->group[FROM_FILE].buft || !is_mapped(map, t->name)) {
                lk_mapping_drop_pages(&map->file, data, gguf_get_tensor_size(ld->reader.gguf, id));
            }
        }
    }
    if (ld->opts.progress && !ld->opts.progress(ld->opts.user, total, total)) {
        return lk_fail(err, LK_E_CANCELLED, "loading the model was cancelled");
    }
    return LK_OK;
}

ggml_backend_buffer_type_t lk_weights_repacked(const struct lk_weights_map *map) {
    return map->repacked;
}

/* Find out which buffer type has the layout that kernels read, if matrices of Q4_K get it. */
static void find_repacked(struct lk_weights_map *map, ggml_backend_dev_t dev) {
    const int64_t ne[] = {LK_PRODUCT_BLOCK, LK_PRODUCT_OUTPUTS, 1};
    int g = find_repack_group(map, dev, LK_USE_MATRIX, GGML_TYPE_Q4_K, ne);
    if (g >= 0 && lk_knows_repacked(map->group[g].buft)) map->repacked = map->group[g].buft;
}

static lk_status load_weights(struct lk_weights_map *map, struct lk_loader *ld, lk_err *err) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev) return lk_fail(err, LK_E_UNSUPPORTED, "this build of ggml has no CPU backend");
    map->n_group = REPACKED;
    map->group[FROM_FILE].buft = ld->opts.no_mmap ? ggml_backend_dev_buffer_type(dev) : NULL;
    map->group[COPIED].buft = ggml_backend_dev_buffer_type(dev);
    map->group[ON_DEVICE].buft = ld->device ? ld->device->buft : map->group[COPIED].buft;
    if (!ld->opts.no_repack) add_repack_groups(map, dev);
    find_repacked(map, dev);
    lk_status status = create_tensors(map, ld, dev, err);
    for (int g = 0; !status && g < map->n_group; g++)
        status = map->header_only ? measure_group(&map->group[g], dev, err)
                                  : alloc_group(map, ld, &map->group[g], err);
    if (status || map->header_only) return status;
    status = copy_tensors(map, ld, err);
    if (!status) status = copy_concats(ld, err);
    return !status ? copy_adapted(ld, err) : status;
}

/* The arguments and the result of load_weights. */
struct loading {
    struct lk_weights_map *map;
    struct lk_loader *ld;
    lk_status status;
    lk_err *err;
};

/* May throw. The map can be freed afterwards. */
static void load_or_throw(void *arg) {
    struct loading *l = arg;
    l->status = load_weights(l->map, l->ld, l->err);
}

lk_status lk_weights_load(struct lk_weights_map **out, struct lk_loader *ld, uint64_t *n_param,
                          uint64_t *weight_bytes, uint64_t *device_bytes, lk_err *err) {
    struct lk_weights_map *map = lk_alloc(ld->ledger, LK_FOR_OTHER, sizeof *map);
    if (!map) return lk_fail(err, LK_E_NOMEM, "not enough memory for the weights");
    map->file = ld->file;
    map->header_only = ld->opts.header_only;
    struct loading l = {.map = map, .ld = ld, .err = err};
    lk_err why = {0};
    lk_status status = lk_cxx_call(load_or_throw, &l, &why);
    if (status && ld->device && status != LK_E_NOMEM)
        status = lk_fail(err, LK_E_IO, "the device %s failed: %.200s", ld->device->name, why.msg);
    else if (status)
        lk_fail(err, status, "%s", why.msg);
    if (!status) status = l.status;
    if (status) {
        map->file = (struct lk_mapping){0}; /* still owned by the loader */
        lk_weights_free(map, ld->device, ld->ledger);
        return status;
    }
    *n_param = 0;
    *weight_bytes = 0;
    int64_t n_tensors = gguf_get_n_tensors(ld->reader.gguf);
    for (int64_t i = 0; i < n_tensors; i++) {
        const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, i);
        *n_param += (uint64_t)(ne[0] * ne[1] * ne[2]);
    }
    *device_bytes = 0;
    for (int g = 0; g < map->n_group; g++)
        *(g == ON_DEVICE ? device_bytes : weight_bytes) += map->group[g].bytes;
    ld->file = (struct lk_mapping){0};
    if (ld->opts.no_mmap || map->header_only) lk_mapping_close(&map->file);
    *out = map;
    return LK_OK;
}
