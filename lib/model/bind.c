/* Binds the tensors of a model file to the pointers that will hold them. */
#include "model/bind.h"

#include "model/gguf_read.h"

#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* False for types that GGUF allows but ggml cannot multiply by or look rows up in. */
static bool is_type_usable(enum ggml_type type, enum lk_tensor_use use) {
    if (type == GGML_TYPE_F32) return true;
    if (type == GGML_TYPE_NVFP4) return false; /* needs a second scale from another tensor */
    if (use == LK_USE_VECTOR && ggml_is_quantized(type)) return false;
    return ggml_get_type_traits(type)->to_float != NULL;
}

/* The number of matrices of a tensor. */
static int64_t matrix_count(const struct lk_loader *ld, enum lk_tensor_use use) {
    return use == LK_USE_EXPERTS ? ld->n_expert : use == LK_USE_HEADS ? ld->n_head : 1;
}

/* The expected shape, "[ne0, ne1]", followed by the number of matrices if there are several. */
static const char *shape_text(const struct lk_loader *ld, const struct lk_tensor_spec *spec,
                              char text[72]) {
    int n = snprintf(text, 72, "[%" PRId64 ", %" PRId64, spec->ne0, spec->ne1);
    if (spec->use == LK_USE_EXPERTS || spec->use == LK_USE_HEADS)
        n += snprintf(text + n, 72 - (size_t)n, ", %" PRId64, matrix_count(ld, spec->use));
    snprintf(text + n, 72 - (size_t)n, "]");
    return text;
}

static lk_status bind_tensor(struct lk_loader *ld, const struct lk_tensor_spec *spec, int layer,
                             lk_err *err) {
    char name[GGML_MAX_NAME], shape[72];
    const char *mark = strstr(spec->name, "%d");
    if (mark)
        snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - spec->name), spec->name, layer,
                 mark + 2);
    else
        snprintf(name, sizeof name, "%s", spec->name);
    int64_t id = gguf_find_tensor(ld->reader.gguf, name);
    if (id < 0) {
        if (spec->need == LK_OPTIONAL) return LK_OK;
        return lk_fail(err, LK_E_FORMAT, "the model file has no tensor %s %s", name,
                       shape_text(ld, spec, shape));
    }
    const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, id);
    int64_t n_matrix = matrix_count(ld, spec->use);
    if (ne[0] != spec->ne0 || ne[1] != spec->ne1 || ne[2] != n_matrix || ne[3] != 1) {
        return lk_fail(err, LK_E_FORMAT,
                       "tensor %s has shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                       "], expected %s",
                       name, ne[0], ne[1], ne[2], ne[3], shape_text(ld, spec, shape));
    }
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, id);
    if (!is_type_usable(type, spec->use)) {
        return lk_fail(err, LK_E_UNSUPPORTED, "tensor %s has type %s, which cannot be used for %s",
                       name, ggml_type_name(type),
                       spec->use == LK_USE_VECTOR ? "a norm or a bias" : "a weight matrix");
    }
    if (ld->n_bind == ld->cap_bind)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model has more tensors than its architecture allows");
    ld->bind[ld->n_bind++] = (struct lk_bind){.dst = spec->dst, .id = id, .use = spec->use};
    ld->used[id] = 1;
    return LK_OK;
}

lk_status lk_bind(struct lk_loader *ld, const struct lk_tensor_spec *spec, size_t n, int layer,
                  lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < n; i++) status = bind_tensor(ld, &spec[i], layer, err);
    return status;
}

void lk_bind_concat(struct lk_loader *ld, struct ggml_tensor **matrix, struct ggml_tensor **bias,
                    size_t first, size_t n) {
    size_t n_bound = ld->n_bind - first;
    if (ld->n_concat == ld->cap_concat || (n_bound != n && n_bound != 2 * n)) return;
    ld->concat[ld->n_concat++] = (struct lk_concat){
        .matrix = matrix, .bias = bias, .first = first, .n = n, .with_bias = n_bound == 2 * n};
}

void lk_bind_skip_layers(struct lk_loader *ld, int first, int n) {
    for (int64_t i = 0; n > 0 && i < gguf_get_n_tensors(ld->reader.gguf); i++) {
        int layer = -1;
        if (sscanf(gguf_get_tensor_name(ld->reader.gguf, i), "blk.%4d.", &layer) == 1 &&
            layer >= first && layer < first + n)
            ld->used[i] = 1;
    }
}

lk_status lk_bind_check_all_used(const struct lk_loader *ld, lk_err *err) {
    int64_t n = gguf_get_n_tensors(ld->reader.gguf);
    for (int64_t i = 0; i < n; i++) {
        if (ld->used[i]) continue;
        const char *name = gguf_get_tensor_name(ld->reader.gguf, i);
        char text[64];
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model has the tensor %s, which lowkey does not know for %s models",
                       lk_printable(text, name, strlen(name)), ld->reader.arch);
    }
    return LK_OK;
}
