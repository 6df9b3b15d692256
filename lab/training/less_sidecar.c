/* The sidecar of LESS networks: tensors blk.N.less.* of every layer. */
#include "training/less_sidecar.h"

#include "sidecar/sidecar_write.h"

#include <stdio.h>
#include <string.h>

static lk_status add_layer(struct lk_sidecar_builder *draft, const struct lk_less_shape *s,
                           int layer, const struct lk_less_maps *k, lk_err *err) {
    const struct {
        const char *part;
        enum lk_sidecar_type type;
        const void *data;
        int ne0, ne1, ne2;
    } all[] = {{"phi.w1", LK_SIDECAR_F16, k->phi_w1, s->n_hidden, s->d_head, s->n_phi},
               {"phi.w2", LK_SIDECAR_F16, k->phi_w2, s->n_feature, s->n_hidden, s->n_phi},
               {"psi.w1", LK_SIDECAR_F16, k->psi_w1, s->n_hidden, s->d_head, s->n_psi},
               {"psi.w2", LK_SIDECAR_F16, k->psi_w2, s->n_feature, s->n_hidden, s->n_psi},
               {"phi.level", LK_SIDECAR_F32, k->phi_bias, s->n_head, 1, 1},
               {"psi.w3", LK_SIDECAR_F32, k->psi_w3, s->n_feature, s->n_feature, s->n_psi},
               {"psi.s1", LK_SIDECAR_F32, k->psi_s1, s->n_feature, s->n_psi, 1},
               {"psi.s2", LK_SIDECAR_F32, k->psi_s2, s->n_feature, s->n_psi, 1}};
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < sizeof all / sizeof *all; i++) {
        struct lk_sidecar_tensor tensor = {.ne = {all[i].ne0, all[i].ne1, all[i].ne2},
                                           .type = all[i].type,
                                           .data = (void *)all[i].data};
        snprintf(tensor.name, sizeof tensor.name, "blk.%d.less.%s", layer, all[i].part);
        status = lk_sidecar_builder_add(draft, &tensor, err);
    }
    return status;
}

/* Add the tensors of a sidecar that are not of networks. */
static lk_status add_others(struct lk_sidecar_builder *draft, const struct lk_sidecar *other,
                            lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; other && status == LK_OK && i < other->n_tensor; i++)
        if (!strstr(other->tensor[i].name, ".less."))
            status = lk_sidecar_builder_add(draft, &other->tensor[i], err);
    return status;
}

lk_status lk_less_sidecar_write(struct lk_less_checkpoint *c, const struct lk_sidecar_info *info,
                                const struct lk_sidecar *other, struct lk_ledger *ledger,
                                lk_err *err) {
    const struct lk_less_shape *s = &c->net->size.shape;
    int n_layer = info->model.n_layer;
    size_t layer_bytes = (lk_less_map_bytes(s) + 3) / 4 * 4; /* floats stay aligned */
    size_t bytes = layer_bytes * (size_t)n_layer;
    char *block = lk_alloc(ledger, LK_FOR_SCRATCH, bytes);
    if (!block)
        return lk_fail(err, LK_E_NOMEM, "no memory to write the networks (%.0f MiB)",
                       (double)bytes / (1 << 20));
    struct lk_sidecar_builder *draft = NULL;
    struct lk_atomic_file f;
    lk_status status = lk_sidecar_builder_new(&draft, info, ledger, err);
    for (int layer = 0; status == LK_OK && layer < n_layer; layer++) {
        struct lk_less_maps maps;
        if (!lk_less_checkpoint_load(c, layer)) {
            status = lk_fail(err, LK_E_IO, "%s.layer-%d is missing; run the command again", c->path,
                             layer);
            break;
        }
        lk_less_net_export(c->net, c->best_weight, block + layer * layer_bytes, &maps);
        status = add_layer(draft, s, layer, &maps, err);
    }
    if (status == LK_OK) status = add_others(draft, other, err);
    if (status == LK_OK) status = lk_atomic_file_open_public(&f, c->path, err);
    if (status == LK_OK)
        status = lk_atomic_file_close(&f, lk_sidecar_builder_write(draft, f.file, err), err);
    lk_sidecar_builder_free(draft);
    lk_release(ledger, LK_FOR_SCRATCH, block, bytes);
    return status;
}
