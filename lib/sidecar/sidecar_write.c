/* Builds sidecars in memory and writes them. */
#include "sidecar/sidecar_write.h"

#include "base/cxx_call.h"
#include "base/log.h"

#include "gguf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct lk_sidecar_builder {
    struct lk_ledger *ledger;
    struct gguf_context *gguf;
    int32_t n_layer;
};

/* Arguments and results of the functions that call gguf. */
struct gguf_call {
    struct gguf_context *gguf;
    const struct lk_sidecar_info *info;
    const struct ggml_tensor *tensor;
    FILE *file;
    bool written;
};

/* May throw. */
static void create_gguf(void *arg) {
    struct gguf_call *call = arg;
    const struct lk_sidecar_info *info = call->info;
    struct gguf_context *gguf = call->gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.type", "sidecar");
    gguf_set_val_u32(gguf, "lowkey.sidecar.version", 1);
    gguf_set_val_str(gguf, "lowkey.sidecar.method", info->method);
    gguf_set_val_str(gguf, "lowkey.sidecar.options", info->options);
    gguf_set_val_u64(gguf, "lowkey.sidecar.model_fingerprint", info->model.fingerprint);
    gguf_set_val_u32(gguf, "lowkey.sidecar.n_layer", (uint32_t)info->model.n_layer);
    gguf_set_val_u32(gguf, "lowkey.sidecar.n_head_kv", (uint32_t)info->model.n_head_kv);
    gguf_set_val_u32(gguf, "lowkey.sidecar.d_head", (uint32_t)info->model.d_head);
    gguf_set_val_u64(gguf, "lowkey.sidecar.calibration_hash", info->calibration_hash);
    gguf_set_val_u64(gguf, "lowkey.sidecar.calibration_tokens", info->calibration_tokens);
}

lk_status lk_sidecar_builder_new(struct lk_sidecar_builder **out,
                                 const struct lk_sidecar_info *info, struct lk_ledger *ledger,
                                 lk_err *err) {
    lk_redirect_logs();
    struct lk_sidecar_builder *builder = lk_alloc(ledger, LK_FOR_OTHER, sizeof *builder);
    if (!builder) return lk_fail(err, LK_E_NOMEM, "not enough memory for a sidecar");
    *builder = (struct lk_sidecar_builder){.ledger = ledger, .n_layer = info->model.n_layer};
    struct gguf_call call = {.info = info};
    lk_status status = lk_cxx_call(create_gguf, &call, err);
    builder->gguf = call.gguf;
    if (status)
        lk_sidecar_builder_free(builder);
    else
        *out = builder;
    return status;
}

void lk_sidecar_builder_free(struct lk_sidecar_builder *builder) {
    if (!builder) return;
    if (builder->gguf) gguf_free(builder->gguf);
    lk_release(builder->ledger, LK_FOR_OTHER, builder, sizeof *builder);
}

/* May throw. */
static void add_tensor(void *arg) {
    const struct gguf_call *call = arg;
    gguf_add_tensor(call->gguf, call->tensor);
}

lk_status lk_sidecar_builder_add(struct lk_sidecar_builder *builder,
                                 const struct lk_sidecar_tensor *t, lk_err *err) {
    size_t len = strnlen(t->name, sizeof t->name);
    if (len == 0 || len >= GGML_MAX_NAME)
        return lk_fail(err, LK_E_ARG, "a tensor name has %zu bytes, expected 1 to %d", len,
                       GGML_MAX_NAME - 1);
    if (gguf_find_tensor(builder->gguf, t->name) >= 0)
        return lk_fail(err, LK_E_ARG, "the sidecar already has a tensor %s", t->name);
    if (t->ne[0] < 1 || t->ne[1] < 1 || t->ne[2] < 1)
        return lk_fail(err, LK_E_ARG, "tensor %s has no values", t->name);
    /* gguf copies this description. It reads `data` when the file is written. */
    struct ggml_tensor tensor = {.type = (enum ggml_type)lk_sidecar_ggml_type(t->type),
                                 .ne = {t->ne[0], t->ne[1], t->ne[2], 1},
                                 .data = (void *)t->data};
    tensor.nb[0] = ggml_type_size(tensor.type);
    for (int d = 1; d < GGML_MAX_DIMS; d++)
        tensor.nb[d] = tensor.nb[d - 1] * (size_t)tensor.ne[d - 1];
    memcpy(tensor.name, t->name, len + 1);
    struct gguf_call call = {.gguf = builder->gguf, .tensor = &tensor};
    return lk_cxx_call(add_tensor, &call, err);
}

static lk_status add_basis_part(struct lk_sidecar_builder *builder, int layer,
                                enum lk_basis_side side, const char *part,
                                enum lk_sidecar_type type, const void *data, int32_t ne0,
                                int32_t ne1, int32_t ne2, lk_err *err) {
    struct lk_sidecar_tensor t = {.ne = {ne0, ne1, ne2}, .type = type, .data = data};
    snprintf(t.name, sizeof t.name, "blk.%d.%s.%s", layer, lk_basis_side_name(side), part);
    return lk_sidecar_builder_add(builder, &t, err);
}

lk_status lk_sidecar_builder_add_basis(struct lk_sidecar_builder *builder, int layer,
                                       enum lk_basis_side side, const struct lk_basis *b,
                                       lk_err *err) {
    if (layer < 0 || layer >= builder->n_layer)
        return lk_fail(err, LK_E_ARG, "layer %d is out of range, the sidecar has %d layers", layer,
                       builder->n_layer);
    static const enum lk_sidecar_type type_of[LK_N_BASIS_TYPE] = {[LK_BASIS_F32] = LK_SIDECAR_F32,
                                                                  [LK_BASIS_F16] = LK_SIDECAR_F16,
                                                                  [LK_BASIS_Q8] = LK_SIDECAR_I8};
    enum lk_sidecar_type type = type_of[b->type];
    bool has_up = b->up.any != b->down.any;
    lk_status status = add_basis_part(builder, layer, side, "down", type, b->down.any, b->width,
                                      b->n_comp, b->n_group, err);
    if (!status && b->down.scale)
        status = add_basis_part(builder, layer, side, "down_scale", LK_SIDECAR_F32, b->down.scale,
                                b->n_comp, b->n_group, 1, err);
    if (!status && has_up)
        status = add_basis_part(builder, layer, side, "up", type, b->up.any, b->width, b->n_comp,
                                b->n_group, err);
    if (!status && has_up && b->up.scale)
        status = add_basis_part(builder, layer, side, "up_scale", LK_SIDECAR_F32, b->up.scale,
                                b->n_comp, b->n_group, 1, err);
    if (!status && b->mean)
        status = add_basis_part(builder, layer, side, "mean", LK_SIDECAR_F32, b->mean, b->width,
                                b->n_group, 1, err);
    if (!status)
        status = add_basis_part(builder, layer, side, "rank", LK_SIDECAR_I32, b->rank, b->n_group,
                                1, 1, err);
    if (!status)
        status = add_basis_part(builder, layer, side, "error", LK_SIDECAR_F32, b->error, b->n_comp,
                                b->n_group, 1, err);
    return status;
}

/* May throw. */
static void write_gguf(void *arg) {
    struct gguf_call *call = arg;
    call->written = gguf_write_to_file_ptr(call->gguf, call->file, false);
}

lk_status lk_sidecar_builder_write(const struct lk_sidecar_builder *builder, FILE *file,
                                   lk_err *err) {
    struct gguf_call call = {.gguf = builder->gguf, .file = file};
    errno = 0;
    lk_status status = lk_cxx_call(write_gguf, &call, err);
    if (status) return status;
    if (call.written && fflush(file) == 0) return LK_OK;
    return lk_fail(err, LK_E_IO, "cannot write the sidecar: %s",
                   errno ? strerror(errno) : "the system refused");
}
