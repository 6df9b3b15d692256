/* The file of an unfinished training, and the sidecar of adapters. */
#include "training/lora_state.h"

#include "base/atomic_file.h"
#include "codec/f16.h"
#include "engine/adapters.h"
#include "sidecar/sidecar_write.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const uint64_t state_magic = 0x3230746661726f6cull; /* "loraft02" */

lk_status lk_lora_state_path(char *out, const char *path, lk_err *err) {
    if (strlen(path) + 32 > LK_MAX_PATH)
        return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    snprintf(out, LK_MAX_PATH, "%s.lora", path);
    return LK_OK;
}

lk_status lk_lora_state_save(const char *path, const struct lk_lora_state *state,
                             const struct lk_lora_net *net, lk_err *err) {
    struct lk_lora_state sealed = *state;
    struct lk_atomic_file f;
    size_t n = 4 * net->n_weight;
    sealed.magic = state_magic;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status) return status;
    if (fwrite(&sealed, sizeof sealed, 1, f.file) != 1 ||
        fwrite(net->weight, sizeof(float), n, f.file) != n)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

lk_status lk_lora_state_load(const char *path, struct lk_lora_state *state, struct lk_lora_net *net,
                             lk_err *err) {
    struct lk_lora_state found;
    FILE *file;
    lk_status status = lk_open_if_there(&file, path, err);
    if (status || !file) return status;
    size_t n = 4 * net->n_weight;
    bool whole = fread(&found, sizeof found, 1, file) == 1 && found.magic == state_magic;
    if (whole && found.identity != state->identity)
        status = lk_fail(err, LK_E_ARG,
                         "%s is the state of another training; delete it or choose another output",
                         path);
    else if (whole && found.n_step > 0 && found.best_step >= 0 && found.best_step <= found.n_step &&
             isfinite(found.best_kl) && fread(net->weight, sizeof(float), n, file) == n)
        *state = found;
    else if (ferror(file))
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    else
        status = lk_fail(err, LK_E_FORMAT,
                         "%s is damaged, or of another version; delete it to start again", path);
    fclose(file);
    return status;
}

/* ---- sidecar ----
 *
 * Tensors blk.N.NAME.weight.lora_a and lora_b. */

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
    return status ? status : lk_sidecar_builder_add(draft, &b, err);
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
    for (int i = first * LK_N_ADAPTED; !status && i < (last + 1) * LK_N_ADAPTED; i++)
        status = add_adapter(draft, net, i / LK_N_ADAPTED, (enum lk_adapted)(i % LK_N_ADAPTED),
                             half, err);
    for (size_t i = 0; other && !status && i < other->n_tensor; i++)
        status = lk_sidecar_builder_add(draft, &other->tensor[i], err);
    if (!status) status = lk_atomic_file_open_public(&f, path, err);
    if (!status)
        status = lk_atomic_file_close(&f, lk_sidecar_builder_write(draft, f.file, err), err);
    lk_sidecar_builder_free(draft);
    lk_release(net->ledger, LK_FOR_SCRATCH, half, bytes);
    return status;
}
