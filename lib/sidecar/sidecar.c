/* Reads and checks sidecars. */
#include "sidecar/sidecar.h"

#include "base/log.h"
#include "model/gguf_read.h"

#include "gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { VERSION = 1, MAX_LAYERS = 1 << 16, MAX_WIDTH = 1 << 20, ALIGN = 64 };

/* ---- keys ---- */

static lk_status read_u64(const struct lk_gguf_reader *r, const char *key, uint64_t *out,
                          lk_err *err) {
    int64_t id = lk_gguf_find_key(r, key);
    if (id < 0) return lk_fail(err, LK_E_FORMAT, "the sidecar has no key %s", key);
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_UINT64)
        return lk_fail(err, LK_E_FORMAT, "key %s is not an unsigned 64-bit number", key);
    *out = gguf_get_val_u64(r->gguf, id);
    return LK_OK;
}

static lk_status read_str(const struct lk_gguf_reader *r, const char *key, char *out, size_t cap,
                          lk_err *err) {
    const char *text = "";
    lk_status status = lk_gguf_read_str(r, key, LK_REQUIRED, &text, err);
    if (status) return status;
    size_t len = strlen(text);
    if (len >= cap)
        return lk_fail(err, LK_E_FORMAT, "key %s has %zu bytes, at most %zu are allowed", key, len,
                       cap - 1);
    for (size_t i = 0; i < len; i++) out[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    out[len] = 0;
    return LK_OK;
}

static lk_status read_info(const struct lk_gguf_reader *r, struct lk_sidecar_info *info,
                           lk_err *err) {
    const char *type = "";
    int32_t version = 0;
    lk_status status = lk_gguf_read_str(r, "general.type", LK_OPTIONAL, &type, err);
    if (!status && strcmp(type, "sidecar") != 0)
        status = lk_fail(err, LK_E_FORMAT,
                         "the GGUF file is not a sidecar; create one with `lowkey compress`");
    if (!status)
        status =
            lk_gguf_read_int(r, "lowkey.sidecar.version", LK_REQUIRED, 0, INT32_MAX, &version, err);
    if (!status && version != VERSION)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "the sidecar has version %" PRId32
                         ", expected %d; create it again with `lowkey compress`",
                         version, VERSION);
    if (!status)
        status = read_str(r, "lowkey.sidecar.method", info->method, sizeof info->method, err);
    if (!status)
        status = read_str(r, "lowkey.sidecar.options", info->options, sizeof info->options, err);
    if (!status)
        status = read_u64(r, "lowkey.sidecar.model_fingerprint", &info->model.fingerprint, err);
    if (!status)
        status = lk_gguf_read_int(r, "lowkey.sidecar.n_layer", LK_REQUIRED, 1, MAX_LAYERS,
                                  &info->model.n_layer, err);
    if (!status)
        status = lk_gguf_read_int(r, "lowkey.sidecar.n_head_kv", LK_REQUIRED, 1, MAX_WIDTH,
                                  &info->model.n_head_kv, err);
    if (!status)
        status = lk_gguf_read_int(r, "lowkey.sidecar.d_head", LK_REQUIRED, 1,
                                  MAX_WIDTH / info->model.n_head_kv, &info->model.d_head, err);
    if (!status)
        status = read_u64(r, "lowkey.sidecar.calibration_hash", &info->calibration_hash, err);
    if (!status)
        status = read_u64(r, "lowkey.sidecar.calibration_tokens", &info->calibration_tokens, err);
    return status;
}

static lk_status check_model(const struct lk_sidecar_model *made_for,
                             const struct lk_sidecar_model *model, lk_err *err) {
    if (made_for->fingerprint != model->fingerprint) {
        return lk_fail(err, LK_E_ARG,
                       "the sidecar was made for another model (%016" PRIx64 ", not %016" PRIx64
                       "); create one for this model with `lowkey compress`",
                       made_for->fingerprint, model->fingerprint);
    }
    if (made_for->n_layer != model->n_layer || made_for->n_head_kv != model->n_head_kv ||
        made_for->d_head != model->d_head)
        return lk_fail(
            err, LK_E_FORMAT,
            "the sidecar's layers or heads differ from the model's; the sidecar is damaged");
    return LK_OK;
}

/* ---- tensors ---- */

static const enum ggml_type ggml_type_of[LK_N_SIDECAR_TYPE] = {[LK_SIDECAR_F32] = GGML_TYPE_F32,
                                                               [LK_SIDECAR_I32] = GGML_TYPE_I32,
                                                               [LK_SIDECAR_F16] = GGML_TYPE_F16,
                                                               [LK_SIDECAR_I8] = GGML_TYPE_I8};

int lk_sidecar_ggml_type(enum lk_sidecar_type type) { return ggml_type_of[type]; }

static size_t n_values(const struct lk_sidecar_tensor *t) {
    return (size_t)t->ne[0] * t->ne[1] * t->ne[2];
}

size_t lk_sidecar_bytes(const struct lk_sidecar_tensor *t) {
    return n_values(t) * ggml_type_size(ggml_type_of[t->type]);
}

static size_t padded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* Read name, shape and type of tensor i. */
static lk_status read_tensor_info(const struct gguf_context *gguf, size_t i,
                                  struct lk_sidecar_tensor *t, lk_err *err) {
    char name[64];
    strncpy(t->name, gguf_get_tensor_name(gguf, (int64_t)i),
            sizeof t->name - 1); /* fits: lk_gguf_check limits names */
    lk_printable(name, t->name, strlen(t->name));
    const int64_t *ne = gguf_get_tensor_ne(gguf, (int64_t)i);
    enum ggml_type type = gguf_get_tensor_type(gguf, (int64_t)i);
    while (t->type < LK_N_SIDECAR_TYPE && ggml_type_of[t->type] != type) t->type++;
    if (t->type == LK_N_SIDECAR_TYPE)
        return lk_fail(err, LK_E_FORMAT,
                       "tensor %s of the sidecar has type %s, expected f32, f16, i8 or i32", name,
                       ggml_type_name(type));
    if (ne[3] != 1)
        return lk_fail(err, LK_E_FORMAT, "tensor %s of the sidecar has more than three dimensions",
                       name);
    for (int d = 0; d < 3; d++) {
        if (ne[d] > INT32_MAX)
            return lk_fail(err, LK_E_FORMAT, "tensor %s of the sidecar is too large", name);
        t->ne[d] = (int32_t)ne[d];
    }
    return LK_OK;
}

static lk_status check_finite(const struct lk_sidecar_tensor *t, lk_err *err) {
    const float *x = t->data;
    const uint16_t *half = t->data;
    bool integer = t->type == LK_SIDECAR_I32 || t->type == LK_SIDECAR_I8;
    for (size_t i = 0, n = integer ? 0 : n_values(t); i < n; i++) {
        bool finite = t->type == LK_SIDECAR_F16 ? (half[i] & 0x7c00) != 0x7c00 : isfinite(x[i]);
        if (!finite)
            return lk_fail(err, LK_E_FORMAT,
                           "tensor %s of the sidecar has a value that is not finite", t->name);
    }
    return LK_OK;
}

/* Whether a tensor stays in the mapped file: what caches copy of a basis, errors, and adapters,
 * which are read once. */
static bool stays_mapped(const struct lk_sidecar_tensor *t) {
    static const char *const parts[] = {"down", "up", "down_scale", "up_scale", "error"};
    size_t len = strlen(t->name);
    if (strstr(t->name, ".weight.lora_")) return true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (int side = 0; side < LK_N_BASIS; side++) {
            char end[32];
            int n = snprintf(end, sizeof end, ".%s.%s",
                             lk_basis_side_name((enum lk_basis_side)side), parts[i]);
            if (len > (size_t)n && strcmp(t->name + len - n, end) == 0) return true;
        }
    return false;
}

static lk_status read_tensors(struct lk_sidecar *s, const struct gguf_context *gguf, lk_err *err) {
    s->n_tensor = (size_t)gguf_get_n_tensors(gguf);
    if (s->n_tensor == 0) return lk_fail(err, LK_E_FORMAT, "the sidecar holds no tensors");
    s->tensor = lk_alloc(s->ledger, LK_FOR_OTHER, s->n_tensor * sizeof *s->tensor);
    if (!s->tensor) return lk_fail(err, LK_E_NOMEM, "not enough memory for the sidecar");
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < s->n_tensor; i++) {
        status = read_tensor_info(gguf, i, &s->tensor[i], err);
        if (!status && !stays_mapped(&s->tensor[i]))
            s->bytes += padded(lk_sidecar_bytes(&s->tensor[i]));
    }
    if (status) {
        s->bytes = 0;
        return status;
    }
    if (s->bytes) s->data = lk_alloc(s->ledger, LK_FOR_WEIGHTS, s->bytes);
    if (s->bytes && !s->data)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for the sidecar's %.1f MiB",
                       (double)s->bytes / (1 << 20));
    char *at = s->data;
    for (size_t i = 0; !status && i < s->n_tensor; i++) {
        struct lk_sidecar_tensor *t = &s->tensor[i];
        size_t bytes = lk_sidecar_bytes(t);
        t->data =
            s->file.data + gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, (int64_t)i);
        if (!stays_mapped(t)) {
            t->data = memcpy(at, t->data, bytes);
            at += padded(bytes);
        }
        status = check_finite(t, err);
    }
    return status;
}

/* What sessions are saved with: recipes read nothing but tensors. */
static uint64_t hash_tensors(const struct lk_sidecar *s) {
    uint64_t hash = 0;
    for (size_t i = 0; i < s->n_tensor; i++) {
        const struct lk_sidecar_tensor *t = &s->tensor[i];
        const int32_t shape[4] = {t->ne[0], t->ne[1], t->ne[2], (int32_t)t->type};
        hash = XXH3_64bits_withSeed(t->name, strlen(t->name), hash);
        hash = XXH3_64bits_withSeed(shape, sizeof shape, hash);
        hash = XXH3_64bits_withSeed(t->data, lk_sidecar_bytes(t), hash);
    }
    return hash | 1;
}

lk_status lk_sidecar_find(const struct lk_sidecar *s, const char *name, enum lk_sidecar_type type,
                          int64_t ne0, int64_t ne1, int64_t ne2, const void **out, lk_err *err) {
    const struct lk_sidecar_tensor *t = NULL;
    for (size_t i = 0; !t && i < s->n_tensor; i++)
        if (strcmp(s->tensor[i].name, name) == 0) t = &s->tensor[i];
    if (t && (t->type != type || t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2)) {
        return lk_fail(
            err, LK_E_FORMAT,
            "tensor %s of the sidecar is [%d, %d, %d] of %s, expected [%lld, %lld, %lld] of %s",
            name, t->ne[0], t->ne[1], t->ne[2], ggml_type_name(ggml_type_of[t->type]),
            (long long)ne0, (long long)ne1, (long long)ne2, ggml_type_name(ggml_type_of[type]));
    }
    *out = t ? t->data : NULL;
    return LK_OK;
}

/* ---- bases ---- */

/* The tensors of a basis. */
enum basis_part { DOWN, UP, DOWN_SCALE, UP_SCALE, MEAN, RANK, ERROR, N_PART };
static const char *const part_name[N_PART] = {
    [DOWN] = "down",         [UP] = "up",     [DOWN_SCALE] = "down_scale",
    [UP_SCALE] = "up_scale", [MEAN] = "mean", [RANK] = "rank",
    [ERROR] = "error"};
static const bool is_optional[N_PART] = {
    [UP] = true, [MEAN] = true, [DOWN_SCALE] = true, [UP_SCALE] = true};

/* The tensors of one layer's basis; NULL if the file does not have the tensor. */
struct basis_tensors {
    const struct lk_sidecar_tensor *part[N_PART];
};

static bool is_name(const char *name, const char *text, size_t len) {
    return strlen(name) == len && memcmp(name, text, len) == 0;
}

/* Store a tensor named "blk.N.SIDE.PART" in found[side][layer]. Other names are ignored. */
static void sort_basis_tensor(const struct lk_sidecar_tensor *t, int n_layer,
                              struct basis_tensors *found) {
    if (strncmp(t->name, "blk.", 4) != 0) return;
    const char *c = t->name + 4;
    int layer = 0;
    for (; *c >= '0' && *c <= '9' && layer < MAX_LAYERS; c++) layer = layer * 10 + (*c - '0');
    const char *dot = c > t->name + 4 && *c == '.' ? strchr(c + 1, '.') : NULL;
    if (!dot || layer >= n_layer) return;
    for (int side = 0; side < LK_N_BASIS; side++) {
        if (!is_name(lk_basis_side_name(side), c + 1, (size_t)(dot - c - 1))) continue;
        for (int part = 0; part < N_PART; part++)
            if (strcmp(part_name[part], dot + 1) == 0)
                found[(size_t)side * n_layer + layer].part[part] = t;
    }
}

static bool has_shape(const struct lk_sidecar_tensor *t, enum lk_sidecar_type type, int64_t ne0,
                      int64_t ne1, int64_t ne2) {
    return t->type == type && t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2;
}

/* A matrix of bytes, and no other, has a scale for each row. */
static bool has_scale(const struct lk_sidecar_tensor *matrix,
                      const struct lk_sidecar_tensor *scale) {
    if (!matrix || matrix->type != LK_SIDECAR_I8) return !scale;
    return scale && has_shape(scale, LK_SIDECAR_F32, matrix->ne[1], matrix->ne[2], 1);
}

static struct lk_basis_matrix matrix_of(const struct lk_sidecar_tensor *numbers,
                                        const struct lk_sidecar_tensor *scale) {
    return (struct lk_basis_matrix){.any = numbers->data, .scale = scale ? scale->data : NULL};
}

static enum lk_basis_type basis_type(enum lk_sidecar_type type) {
    return type == LK_SIDECAR_I8    ? LK_BASIS_Q8
           : type == LK_SIDECAR_F16 ? LK_BASIS_F16
                                    : LK_BASIS_F32;
}

static lk_status make_basis(const struct lk_sidecar *s, const struct basis_tensors *f, int layer,
                            enum lk_basis_side side, struct lk_basis *basis, lk_err *err) {
    const struct lk_sidecar_tensor *const *p = f->part;
    const char *side_name = lk_basis_side_name(side);
    bool absent = true;
    for (int i = 0; i < N_PART; i++) absent = absent && !p[i];
    if (absent) return LK_OK;
    for (int i = 0; i < N_PART; i++) {
        if (!p[i] && !is_optional[i])
            return lk_fail(err, LK_E_FORMAT, "the sidecar has no tensor blk.%d.%s.%s", layer,
                           side_name, part_name[i]);
    }
    int64_t width = p[DOWN]->ne[0], n_comp = p[DOWN]->ne[1], n_group = p[DOWN]->ne[2];
    int64_t d_head = s->info.model.d_head, n_row = d_head * s->info.model.n_head_kv;
    if (p[DOWN]->type == LK_SIDECAR_I32 || width % d_head != 0 || width > n_row ||
        n_group * width != n_row || n_comp > width) {
        return lk_fail(
            err, LK_E_FORMAT,
            "blk.%d.%s.down is [%lld, %lld, %lld], expected groups of whole heads with a "
            "total width of %lld",
            layer, side_name, (long long)width, (long long)n_comp, (long long)n_group,
            (long long)n_row);
    }
    bool shapes_agree = has_shape(p[RANK], LK_SIDECAR_I32, n_group, 1, 1) &&
                        has_shape(p[ERROR], LK_SIDECAR_F32, n_comp, n_group, 1) &&
                        (!p[UP] || has_shape(p[UP], p[DOWN]->type, width, n_comp, n_group)) &&
                        (!p[MEAN] || has_shape(p[MEAN], LK_SIDECAR_F32, width, n_group, 1)) &&
                        has_scale(p[DOWN], p[DOWN_SCALE]) && has_scale(p[UP], p[UP_SCALE]);
    if (!shapes_agree)
        return lk_fail(err, LK_E_FORMAT, "the shapes of the tensors blk.%d.%s.* do not agree",
                       layer, side_name);
    const int32_t *rank = p[RANK]->data;
    for (int64_t g = 0; g < n_group; g++) {
        if (rank[g] < 1 || rank[g] > n_comp)
            return lk_fail(err, LK_E_FORMAT, "blk.%d.%s.rank is %" PRId32 ", expected 1 to %lld",
                           layer, side_name, rank[g], (long long)n_comp);
    }
    const float *error = p[ERROR]->data;
    for (int64_t i = 0; i < n_group * n_comp; i++) {
        if (error[i] < 0)
            return lk_fail(err, LK_E_FORMAT, "blk.%d.%s.error has a negative value", layer,
                           side_name);
    }
    *basis = (struct lk_basis){.n_group = (int32_t)n_group,
                               .width = (int32_t)width,
                               .n_comp = (int32_t)n_comp,
                               .rank = rank,
                               .error = error,
                               .type = basis_type(p[DOWN]->type),
                               .down = matrix_of(p[DOWN], p[DOWN_SCALE]),
                               .mean = p[MEAN] ? p[MEAN]->data : NULL};
    basis->up = p[UP] ? matrix_of(p[UP], p[UP_SCALE]) : basis->down;
    return LK_OK;
}

static lk_status make_all_bases(struct lk_sidecar *s, lk_err *err) {
    size_t n_layer = (size_t)s->info.model.n_layer,
           bytes = LK_N_BASIS * n_layer * sizeof(struct basis_tensors);
    struct basis_tensors *found = lk_alloc(s->ledger, LK_FOR_OTHER, bytes);
    s->basis[0] = lk_alloc(s->ledger, LK_FOR_OTHER, LK_N_BASIS * n_layer * sizeof(struct lk_basis));
    lk_status status = found && s->basis[0]
                           ? LK_OK
                           : lk_fail(err, LK_E_NOMEM, "not enough memory for the sidecar");
    for (size_t i = 0; !status && i < s->n_tensor; i++)
        sort_basis_tensor(&s->tensor[i], (int)n_layer, found);
    for (size_t i = 0; !status && i < LK_N_BASIS * n_layer; i++) {
        size_t side = i / n_layer, layer = i % n_layer;
        s->basis[side] = s->basis[0] + side * n_layer;
        status = make_basis(s, &found[i], (int)layer, (enum lk_basis_side)side,
                            &s->basis[side][layer], err);
    }
    lk_release(s->ledger, LK_FOR_OTHER, found, bytes);
    return status;
}

/* ---- the file ---- */

/* Prefix the message with the file's name, unless it already has it. */
static lk_status add_path_to_error(const char *path, lk_status status, lk_err *err) {
    if (!err || strstr(err->msg, path)) return status;
    lk_err cause = *err;
    return lk_fail(err, status, "sidecar %s: %s", path, cause.msg);
}

lk_status lk_sidecar_open(struct lk_sidecar **out, const char *path,
                          const struct lk_sidecar_model *model, struct lk_ledger *ledger,
                          lk_err *err) {
    lk_redirect_logs();
    struct lk_gguf_reader reader = {0};
    struct lk_sidecar *s = lk_alloc(ledger, LK_FOR_OTHER, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "not enough memory for the sidecar");
    s->ledger = ledger;
    lk_status status = lk_gguf_open(&s->file, &reader, path, ledger, err);
    if (!status) status = read_info(&reader, &s->info, err);
    if (!status && model) status = check_model(&s->info.model, model, err);
    if (!status) status = read_tensors(s, reader.gguf, err);
    if (!status) status = make_all_bases(s, err);
    if (!status) s->fingerprint = hash_tensors(s);
    if (reader.gguf) gguf_free(reader.gguf);
    if (!status) lk_mapping_drop_pages(&s->file, s->file.data, s->file.size);
    if (status) {
        lk_sidecar_close(s);
        return add_path_to_error(path, status, err);
    }
    *out = s;
    return LK_OK;
}

void lk_sidecar_close(struct lk_sidecar *s) {
    if (!s) return;
    struct lk_ledger *ledger = s->ledger;
    lk_release(ledger, LK_FOR_OTHER, s->basis[0],
               LK_N_BASIS * (size_t)s->info.model.n_layer * sizeof(struct lk_basis));
    lk_release(ledger, LK_FOR_OTHER, s->tensor, s->n_tensor * sizeof *s->tensor);
    lk_release(ledger, LK_FOR_WEIGHTS, s->data, s->bytes);
    lk_mapping_close(&s->file);
    lk_release(ledger, LK_FOR_OTHER, s, sizeof *s);
}
