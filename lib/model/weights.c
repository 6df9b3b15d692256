#include "model/loader.h"
#include "model/split.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include <string.h>

enum {
    FROM_FILE = 0, /* group of tensors kept as the file has them: mapped, or read with no_mmap */
    AS_F32 = 1,    /* group of dequantised copies, and of offsets (split.h) */
    REPACKED = 2,  /* first group of layouts that only ggml's CPU matmuls understand */
    MAX_GROUP = 10,
};

/* Tensors that live in one buffer. */
struct group {
    ggml_backend_buffer_type_t buft; /* NULL: the mapping itself */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    size_t bytes; /* entered in the ledger */
};

struct lk_weights_map {
    struct lk_mapping file; /* data is NULL with no_mmap */
    struct group group[MAX_GROUP];
    int n_group;
};

void lk_weights_free(struct lk_weights_map *map, struct lk_ledger *ledger) {
    if (!map) return;
    for (int i = 0; i < map->n_group; i++) {
        struct group *g = &map->group[i];
        if (g->buffer) ggml_backend_buffer_free(g->buffer);
        if (g->ctx) ggml_free(g->ctx);
        lk_ledger_remove(ledger, LK_FOR_WEIGHTS, g->bytes);
    }
    lk_mapping_close(&map->file);
    lk_release(ledger, LK_FOR_OTHER, map, sizeof *map);
}

static const void *file_data(const struct lk_loader *ld, int64_t id) {
    return ld->file.data + gguf_get_data_offset(ld->reader.gguf) +
           gguf_get_tensor_offset(ld->reader.gguf, id);
}

/* Can the device multiply by `like` when it lies in a buffer of this type? */
static bool matmul_supported(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft,
                             enum ggml_type type, const int64_t *ne) {
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true});
    if (!ctx) return false;
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, type, ne[0], ne[1]);
    struct ggml_tensor *x =
        ggml_new_tensor_2d(ctx, GGML_TYPE_F32, ne[0], 512); /* a typical batch */
    struct ggml_tensor *product = ggml_mul_mat(ctx, w, x);
    w->buffer = ggml_backend_buft_alloc_buffer(buft, 0); /* empty: only its type is asked for */
    bool yes = w->buffer && ggml_backend_dev_supports_op(dev, product);
    if (w->buffer) ggml_backend_buffer_free(w->buffer);
    ggml_free(ctx);
    return yes;
}

/* Add the CPU's repacking buffer types behind the first two groups. */
static void find_repack_types(struct lk_weights_map *map, ggml_backend_dev_t dev) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            reg, "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *list = get ? get(dev) : NULL;
    for (; list && *list && map->n_group < MAX_GROUP; list++)
        map->group[map->n_group++].buft = *list;
}

/* Where a tensor lies, and as what. A matrix that is not of its file's type there is kept in two parts (split.h). */
struct place {
    int group;
    enum ggml_type type;
};

static int find_repacked(const struct lk_weights_map *map, ggml_backend_dev_t dev,
                         enum ggml_type type, const int64_t *ne) {
    for (int g = REPACKED; g < map->n_group; g++) {
        if (matmul_supported(dev, map->group[g].buft, type, ne)) return g;
    }
    return -1;
}

/* For a bound tensor, or for a matrix of ne as if it were one. */
static struct place choose_place(const struct lk_weights_map *map, const struct lk_loader *ld,
                                 const struct lk_bind *b, const int64_t *ne,
                                 ggml_backend_dev_t dev) {
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
    if (type != GGML_TYPE_F32 && (b->use == LK_USE_VECTOR || ld->opts.f32))
        return (struct place){AS_F32, GGML_TYPE_F32};
    if (b->use != LK_USE_MATRIX) return (struct place){FROM_FILE, type};
    int g = find_repacked(map, dev, type, ne);
    if (g < 0 && type == GGML_TYPE_Q4_1) {
        g = find_repacked(map, dev, GGML_TYPE_Q4_0, ne);
        if (g >= 0) type = GGML_TYPE_Q4_0;
    }
    return (struct place){g < 0 ? FROM_FILE : g, type};
}

static const int64_t *shape_of(const struct lk_loader *ld, const struct lk_bind *b) {
    return gguf_get_tensor_ne(ld->reader.gguf, b->id);
}

/* A tensor in its place, with its offsets where it is in two parts. */
static struct ggml_tensor *create(struct lk_weights_map *map, struct place place,
                                  enum ggml_type file_type, int64_t ne0, int64_t ne1) {
    struct ggml_tensor *t = ggml_new_tensor_2d(map->group[place.group].ctx, place.type, ne0, ne1);
    if (place.group >= REPACKED && place.type != file_type) {
        lk_split_pair(t, ggml_new_tensor_1d(map->group[AS_F32].ctx, GGML_TYPE_F16,
                                            (int64_t)lk_offset_count(ne0, ne1)));
    }
    return t;
}

/* The place that all matrices of a join may have together; its group is -1 where they stay apart. */
static struct place choose_joint(const struct lk_weights_map *map, const struct lk_loader *ld,
                                 const struct lk_join *join, ggml_backend_dev_t dev) {
    const struct lk_bind *b = &ld->bind[join->first];
    struct place first = choose_place(map, ld, b, shape_of(ld, b), dev);
    int64_t ne[2] = {shape_of(ld, b)[0], 0};
    for (size_t i = 0; i < join->n; i++) {
        struct place place = choose_place(map, ld, &b[i], shape_of(ld, &b[i]), dev);
        bool alike = gguf_get_tensor_type(ld->reader.gguf, b[i].id) ==
                     gguf_get_tensor_type(ld->reader.gguf, b->id);
        if (!alike || place.group != first.group || place.type != first.type)
            return (struct place){-1, first.type};
        ne[1] += shape_of(ld, &b[i])[1];
    }
    struct place joint = choose_place(map, ld, b, ne, dev);
    return joint.group >= REPACKED ? joint : (struct place){-1, first.type};
}

/* The matrix with the rows of n bound ones. */
static void create_joint(struct lk_weights_map *map, struct lk_loader *ld, struct place place,
                         const struct lk_join *join) {
    struct lk_bind *b = &ld->bind[join->first];
    int64_t rows = 0;
    for (size_t i = 0; i < join->n; i++) {
        rows += shape_of(ld, &b[i])[1];
        b[i].joined = true;
    }
    *join->matrix =
        create(map, place, gguf_get_tensor_type(ld->reader.gguf, b->id), shape_of(ld, b)[0], rows);
}

/* The vector with as many numbers as the biases of n bound matrices have together. */
static void create_joint_bias(struct lk_weights_map *map, struct lk_loader *ld,
                              const struct lk_join *join) {
    struct lk_bind *b = &ld->bind[join->first + join->n];
    int64_t n = 0;
    for (size_t i = 0; i < join->n; i++) {
        n += shape_of(ld, &b[i])[0];
        b[i].joined = true;
    }
    *join->bias = ggml_new_tensor_2d(map->group[AS_F32].ctx, GGML_TYPE_F32, n, 1);
}

static void create_joints(struct lk_weights_map *map, struct lk_loader *ld,
                          ggml_backend_dev_t dev) {
    for (size_t i = 0; i < ld->n_join; i++) {
        const struct lk_join *join = &ld->join[i];
        struct place place = choose_joint(map, ld, join, dev);
        if (place.group < 0) continue;
        create_joint(map, ld, place, join);
        if (join->with_bias) create_joint_bias(map, ld, join);
    }
}

/* Create every bound tensor in its group's context, without memory yet. A matrix that is also a table
 * (tied embeddings) is shared unless it is repacked. */
static lk_status create_tensors(struct lk_weights_map *map, struct lk_loader *ld,
                                ggml_backend_dev_t dev, lk_err *err) {
    size_t overhead = (2 * ld->n_bind + 1) * ggml_tensor_overhead(); /* tensors and offsets */
    for (int g = 0; g < map->n_group; g++) {
        map->group[g].ctx =
            ggml_init((struct ggml_init_params){.mem_size = overhead, .no_alloc = true});
        if (!map->group[g].ctx) return lk_fail(err, LK_E_NOMEM, "no memory for the tensor table");
    }
    create_joints(map, ld, dev);
    for (size_t i = 0; i < ld->n_bind; i++) {
        const struct lk_bind *b = &ld->bind[i];
        if (b->joined) continue;
        const char *name = gguf_get_tensor_name(ld->reader.gguf, b->id);
        const int64_t *ne = shape_of(ld, b);
        enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
        struct place place = choose_place(map, ld, b, ne, dev);
        if (b->use == LK_USE_MATRIX && place.group < REPACKED &&
            !matmul_supported(dev, ggml_backend_dev_buffer_type(dev), place.type, ne)) {
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "tensor %s has type %s, which ggml's CPU backend cannot multiply by",
                           name, ggml_type_name(type));
        }
        struct ggml_tensor *t = ggml_get_tensor(map->group[place.group].ctx, name);
        if (!t) {
            t = create(map, place, type, ne[0], ne[1]);
            ggml_set_name(t, name);
        }
        *b->slot = t;
    }
    return LK_OK;
}

/* Memory for a group's tensors. */
static lk_status allocate_group(struct lk_weights_map *map, struct lk_loader *ld, struct group *g,
                                lk_err *err) {
    struct ggml_tensor *first = ggml_get_first_tensor(g->ctx);
    if (!first) return LK_OK;
    if (!g->buft) {
        g->buffer = ggml_backend_cpu_buffer_from_ptr(map->file.data, map->file.size);
        if (!g->buffer) return lk_fail(err, LK_E_NOMEM, "no memory for a buffer's description");
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
    if (!lk_ledger_enter(ld->ledger, LK_FOR_WEIGHTS, bytes)) {
        return lk_fail(err, LK_E_NOMEM, "no memory for %zu MiB of weights", bytes >> 20);
    }
    g->bytes = bytes;
    g->buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->ctx, g->buft);
    if (!g->buffer)
        return lk_fail(err, LK_E_NOMEM, "no memory for %zu MiB of weights", bytes >> 20);
    ggml_backend_buffer_set_usage(g->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    lk_mapping_enlarge(ggml_backend_buffer_get_base(g->buffer), bytes);
    return LK_OK;
}

static void dequantise(struct ggml_tensor *t, enum ggml_type from, const uint8_t *data) {
    ggml_to_float_t to_float = ggml_get_type_traits(from)->to_float;
    size_t row = ggml_row_size(from, t->ne[0]);
    for (int64_t i = 0; i < t->ne[1]; i++)
        to_float(data + (size_t)i * row, (float *)t->data + i * t->ne[0], t->ne[0]);
}

static bool bound_as_mapped(const struct lk_weights_map *map, const char *name) {
    return ggml_get_tensor(map->group[FROM_FILE].ctx, name) != NULL;
}

/* Copy a matrix that lies in the file's type `from` into its place. */
static lk_status set_matrix(struct lk_loader *ld, struct ggml_tensor *t, enum ggml_type from,
                            const void *rows, lk_err *err) {
    size_t size = ggml_nbytes(t);
    if (t->type == from) {
        ggml_backend_tensor_set(t, rows, 0, size);
        return LK_OK;
    }
    void *part = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!part) return lk_fail(err, LK_E_NOMEM, "no memory for %zu MiB of weights", size >> 20);
    lk_split_rows(rows, t->ne[0], t->ne[1], part, lk_split_offset(t)->data);
    ggml_backend_tensor_set(t, part, 0, size);
    lk_release(ld->ledger, LK_FOR_OTHER, part, size);
    return LK_OK;
}

/* Set a joint matrix to its parts' rows, one part's after the other's. */
static lk_status set_joint(struct lk_loader *ld, const struct lk_join *join, lk_err *err) {
    const struct lk_bind *b = &ld->bind[join->first];
    struct ggml_tensor *t = *join->matrix;
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
    size_t size = ggml_row_size(type, t->ne[0]) * (size_t)t->ne[1], at = 0;
    char *rows = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!rows) return lk_fail(err, LK_E_NOMEM, "no memory for %zu MiB of weights", size >> 20);
    for (size_t i = 0; i < join->n; i++) {
        size_t bytes = gguf_get_tensor_size(ld->reader.gguf, b[i].id);
        memcpy(rows + at, file_data(ld, b[i].id), bytes);
        at += bytes;
        lk_mapping_forget(&ld->file, file_data(ld, b[i].id), bytes);
    }
    lk_status status = set_matrix(ld, t, type, rows, err);
    lk_release(ld->ledger, LK_FOR_OTHER, rows, size);
    return status;
}

static void set_joint_bias(struct lk_loader *ld, const struct lk_join *join) {
    const struct lk_bind *b = &ld->bind[join->first + join->n];
    float *to = (*join->bias)->data;
    for (size_t i = 0; i < join->n; i++) {
        int64_t n = shape_of(ld, &b[i])[0];
        enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b[i].id);
        const void *from = file_data(ld, b[i].id);
        if (type == GGML_TYPE_F32)
            memcpy(to, from, (size_t)n * sizeof *to);
        else
            ggml_get_type_traits(type)->to_float(from, to, n);
        lk_mapping_forget(&ld->file, from, gguf_get_tensor_size(ld->reader.gguf, b[i].id));
        to += n;
    }
}

static lk_status fill_joints(struct lk_loader *ld, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < ld->n_join; i++) {
        const struct lk_join *join = &ld->join[i];
        if (!ld->bind[join->first].joined) continue;
        status = set_joint(ld, join, err);
        if (join->with_bias) set_joint_bias(ld, join);
    }
    return status;
}

/* Copy what is not mapped, telling the caller how far we are. */
static lk_status fill(struct lk_weights_map *map, struct lk_loader *ld, lk_err *err) {
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
            if (mapped || id < 0) continue; /* joint ones and offsets have no name */
            const void *data = file_data(ld, id);
            enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, id);
            if (g == AS_F32) {
                dequantise(t, type, data);
            } else {
                lk_status status = set_matrix(ld, t, type, data, err);
                if (status != LK_OK) return status;
            }
            if (map->group[FROM_FILE].buft || !bound_as_mapped(map, t->name)) {
                lk_mapping_forget(&map->file, data, gguf_get_tensor_size(ld->reader.gguf, id));
            }
        }
    }
    if (ld->opts.progress && !ld->opts.progress(ld->opts.user, total, total)) {
        return lk_fail(err, LK_E_CANCELLED, "loading the model was cancelled");
    }
    return LK_OK;
}

static lk_status load(struct lk_weights_map *map, struct lk_loader *ld, lk_err *err) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev) return lk_fail(err, LK_E_UNSUPPORTED, "this build of ggml has no CPU backend");
    map->n_group = REPACKED;
    map->group[FROM_FILE].buft = ld->opts.no_mmap ? ggml_backend_dev_buffer_type(dev) : NULL;
    map->group[AS_F32].buft = ggml_backend_dev_buffer_type(dev);
    if (!ld->opts.no_repack) find_repack_types(map, dev);
    lk_status status = create_tensors(map, ld, dev, err);
    for (int g = 0; status == LK_OK && g < map->n_group; g++)
        status = allocate_group(map, ld, &map->group[g], err);
    if (status == LK_OK) status = fill(map, ld, err);
    return status == LK_OK ? fill_joints(ld, err) : status;
}

lk_status lk_weights_load(struct lk_weights_map **out, struct lk_loader *ld, uint64_t *n_param,
                          uint64_t *weight_bytes, lk_err *err) {
    struct lk_weights_map *map = lk_alloc(ld->ledger, LK_FOR_OTHER, sizeof *map);
    if (!map) return lk_fail(err, LK_E_NOMEM, "no memory for the weights' description");
    map->file = ld->file;
    lk_status status = load(map, ld, err);
    if (status != LK_OK) {
        map->file = (struct lk_mapping){0}; /* still the loader's */
        lk_weights_free(map, ld->ledger);
        return status;
    }
    *n_param = 0;
    *weight_bytes = 0;
    int64_t n_tensors = gguf_get_n_tensors(ld->reader.gguf);
    for (int64_t i = 0; i < n_tensors; i++) {
        const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, i);
        *n_param += (uint64_t)(ne[0] * ne[1]);
    }
    for (int g = 0; g < map->n_group; g++) *weight_bytes += map->group[g].bytes;
    ld->file = (struct lk_mapping){0};
    if (ld->opts.no_mmap) lk_mapping_close(&map->file);
    *out = map;
    return LK_OK;
}
