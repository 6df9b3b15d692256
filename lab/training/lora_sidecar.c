/* The sidecar of adapters: tensors blk.N.NAME.weight.lora_a and lora_b. */
#include "training/lora_sidecar.h"

#include "base/atomic_file.h"
#include "codec/half.h"
#include "engine/adapters.h"
#include "sidecar/sidecar_write.h"

#include <math.h>

/* Numbers as halves; false if one is too large. */
static bool write_halves(const float *x, size_t n, float scale, uint16_t *out) {
    bool fits = true;
    for (size_t i = 0; i < n; i++) {
        fits = fits && fabsf(x[i] * scale) < LK_F16_MAX;
        out[i] = lk_f32_to_f16(x[i] * scale);
    }
    return fits;
}

static lk_status add_adapter(struct lk_sidecar_builder *draft, const struct lk_lora_net *net,
                             int layer, enum lk_adapted which, uint16_t *half, lk_err *err) {
    const struct lk_lora_param *p = &net->param[layer][which];
    size_t n_a = (size_t)net->rank * p->n_in, n_b = (size_t)net->rank * p->n_out;
    struct lk_sidecar_tensor a = {.ne = {p->n_in, net->rank, 1},
                                  .type = LK_SIDECAR_F16,
                                  .data = half + p->a},
                             b = {.ne = {net->rank, p->n_out, 1},
                                  .type = LK_SIDECAR_F16,
                                  .data = half + p->b};
    lk_adapter_tensor_name(a.name, layer, which, 'a');
    lk_adapter_tensor_name(b.name, layer, which, 'b');
    if (!write_halves(net->best + p->a, n_a, 1, half + p->a) ||
        !write_halves(net->best + p->b, n_b, net->scale, half + p->b))
        return lk_fail(err, LK_E_FORMAT,
                       "layer %d: an adapter is too large for f16; use a smaller rate", layer);
    lk_status status = lk_sidecar_builder_add(draft, &a, err);
    return status == LK_OK ? lk_sidecar_builder_add(draft, &b, err) : status;
}

lk_status lk_lora_sidecar_write(const struct lk_lora_net *net, int first, int last,
                                const struct lk_sidecar_info *info, const struct lk_sidecar *other,
                                const char *path, lk_err *err) {
    size_t bytes = net->n_weight * sizeof(uint16_t);
    uint16_t *half = lk_alloc(net->ledger, LK_FOR_SCRATCH, bytes);
    if (!half) return lk_fail(err, LK_E_NOMEM, "no memory to write the adapters");
    struct lk_sidecar_builder *draft = NULL;
    struct lk_atomic_file f;
    lk_status status = lk_sidecar_builder_new(&draft, info, net->ledger, err);
    for (int i = first * LK_N_ADAPTED; status == LK_OK && i < (last + 1) * LK_N_ADAPTED; i++)
        status = add_adapter(draft, net, i / LK_N_ADAPTED, (enum lk_adapted)(i % LK_N_ADAPTED),
                             half, err);
    for (size_t i = 0; other && status == LK_OK && i < other->n_tensor; i++)
        status = lk_sidecar_builder_add(draft, &other->tensor[i], err);
    if (status == LK_OK) status = lk_atomic_file_open_public(&f, path, err);
    if (status == LK_OK)
        status = lk_atomic_file_close(&f, lk_sidecar_builder_write(draft, f.file, err), err);
    lk_sidecar_builder_free(draft);
    lk_release(net->ledger, LK_FOR_SCRATCH, half, bytes);
    return status;
}
