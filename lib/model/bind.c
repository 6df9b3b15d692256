#include "model/gguf_check.h"
#include "model/loader.h"

#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Tensors the file's type tables allow but ggml cannot multiply by or look up in. */
static bool type_usable(enum ggml_type type, enum lk_use use) {
    if (type == GGML_TYPE_F32) return true;
    if (type == GGML_TYPE_NVFP4)
        return false; /* needs a second scale that lies in another tensor */
    if (use == LK_USE_VECTOR && ggml_is_quantized(type)) return false;
    return ggml_get_type_traits(type)->to_float != NULL;
}

lk_status lk_bind(struct lk_loader *ld, struct ggml_tensor **slot, const char *name, int layer,
                  enum lk_use use, enum lk_need need, int64_t ne0, int64_t ne1, lk_err *err) {
    char full[GGML_MAX_NAME];
    const char *mark = strstr(name, "%d");
    if (mark) {
        snprintf(full, sizeof full, "%.*s%d%s", (int)(mark - name), name, layer, mark + 2);
    } else {
        snprintf(full, sizeof full, "%s", name);
    }
    int64_t id = gguf_find_tensor(ld->reader.gguf, full);
    if (id < 0) {
        if (need == LK_OPTIONAL) return LK_OK;
        return lk_fail(err, LK_E_FORMAT,
                       "the model file lacks the tensor %s [%" PRId64 ", %" PRId64 "]", full, ne0,
                       ne1);
    }
    const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, id);
    if (ne[0] != ne0 || ne[1] != ne1 || ne[2] != 1 || ne[3] != 1) {
        return lk_fail(err, LK_E_FORMAT,
                       "tensor %s has shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                       "], expected [%" PRId64 ", %" PRId64 "]",
                       full, ne[0], ne[1], ne[2], ne[3], ne0, ne1);
    }
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, id);
    if (!type_usable(type, use)) {
        return lk_fail(err, LK_E_UNSUPPORTED, "tensor %s has type %s, which cannot be used for %s",
                       full, ggml_type_name(type),
                       use == LK_USE_VECTOR ? "a norm or a bias" : "a weight matrix");
    }
    if (ld->n_bind == ld->cap_bind)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model has more tensors than its architecture knows");
    ld->bind[ld->n_bind++] = (struct lk_bind){.slot = slot, .id = id, .use = use};
    ld->used[id] = 1;
    return LK_OK;
}

void lk_bind_join(struct lk_loader *ld, struct ggml_tensor **matrix, struct ggml_tensor **bias,
                  size_t first, size_t n) {
    size_t n_bound = ld->n_bind - first;
    if (ld->n_join == ld->cap_join || (n_bound != n && n_bound != 2 * n)) return;
    ld->join[ld->n_join++] = (struct lk_join){
        .matrix = matrix, .bias = bias, .first = first, .n = n, .with_bias = n_bound == 2 * n};
}

lk_status lk_bind_complete(const struct lk_loader *ld, lk_err *err) {
    int64_t n = gguf_get_n_tensors(ld->reader.gguf);
    for (int64_t i = 0; i < n; i++) {
        if (ld->used[i]) continue;
        const char *name = gguf_get_tensor_name(ld->reader.gguf, i);
        char text[64];
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model has the tensor %s, which %s models are not known to use",
                       lk_printable(text, name, strlen(name)), ld->reader.arch);
    }
    return LK_OK;
}
