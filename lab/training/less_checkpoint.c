/* Files of layers in training, and the sidecar of trained layers. */
#include "training/less_checkpoint.h"

#include "sidecar/sidecar_write.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t state_magic = 0x3430657461746b6cull; /* "lktate04" */

lk_status lk_less_file_name(char out[LK_MAX_PATH], const char *path, const char *format, int n,
                            lk_err *err) {
    size_t len = strlen(path);
    if (len + 32 > LK_MAX_PATH)
        return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    memcpy(out, path, len + 1);
    snprintf(out + len, LK_MAX_PATH - len, format, n);
    return LK_OK;
}

static lk_status layer_file_name(char out[LK_MAX_PATH], const struct lk_less_checkpoint *c,
                                 int layer, lk_err *err) {
    return lk_less_file_name(out, c->path, ".layer-%d", layer, err);
}

/* Floats of the file after the state. */
struct span {
    float *at;
    size_t n;
};

enum { N_SPAN = 3 };

static void list_spans(const struct lk_less_checkpoint *c, struct span span[N_SPAN]) {
    const struct span all[N_SPAN] = {{c->net->weight, 3 * c->net->n_weight},
                                     {c->best_weight, c->net->n_weight},
                                     {c->net->level, (size_t)c->net->size.shape.n_head}};
    memcpy(span, all, sizeof all);
}

void lk_less_checkpoint_start(struct lk_less_checkpoint *c, int layer) {
    c->state = (struct lk_less_state){
        .magic = state_magic, .identity = c->identity, .layer = layer, .best = INFINITY};
}

lk_status lk_less_checkpoint_save(const struct lk_less_checkpoint *c, lk_err *err) {
    char path[LK_MAX_PATH];
    struct span span[N_SPAN];
    struct lk_atomic_file f;
    lk_status status = layer_file_name(path, c, c->state.layer, err);
    if (!status) status = lk_atomic_file_open_public(&f, path, err);
    if (status) return status;
    list_spans(c, span);
    bool ok = fwrite(&c->state, sizeof c->state, 1, f.file) == 1;
    for (int i = 0; ok && i < N_SPAN; i++)
        ok = fwrite(span[i].at, sizeof(float), span[i].n, f.file) == span[i].n;
    if (!ok) status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

/* Could training with c->n_epoch epochs have saved this? */
static bool state_is_possible(const struct lk_less_checkpoint *c) {
    const struct lk_less_state *s = &c->state;
    return s->n_epoch > 0 && s->n_epoch <= c->n_epoch && s->n_step > 0 &&
           s->n_step <= (int64_t)s->n_epoch * INT32_MAX && s->best_epoch >= 0 &&
           s->best_epoch <= s->n_epoch && !isnan(s->best) && (s->tuned == 0 || s->tuned == 1);
}

lk_status lk_less_checkpoint_load(struct lk_less_checkpoint *c, int layer, bool *found,
                                  lk_err *err) {
    char path[LK_MAX_PATH];
    struct span span[N_SPAN];
    FILE *file = NULL;
    *found = false;
    lk_status status = layer_file_name(path, c, layer, err);
    if (!status) status = lk_open_if_there(&file, path, err);
    if (status || !file) return status;
    list_spans(c, span);
    bool whole = fread(&c->state, sizeof c->state, 1, file) == 1 && c->state.magic == state_magic &&
                 c->state.layer == layer,
         same = whole && c->state.identity == c->identity;
    if (same) whole = state_is_possible(c);
    for (int i = 0; same && whole && i < N_SPAN; i++)
        whole = fread(span[i].at, sizeof(float), span[i].n, file) == span[i].n;
    if (whole && !same)
        status = lk_fail(err, LK_E_ARG,
                         "%s is the state of another training; delete it or choose another output",
                         path);
    else if (ferror(file))
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    else if (!whole)
        status = lk_fail(err, LK_E_FORMAT,
                         "%s is damaged, or of another version; delete it to start again", path);
    *found = !status;
    fclose(file);
    return status;
}

void lk_less_checkpoint_remove(const struct lk_less_checkpoint *c, int n_layer) {
    char path[LK_MAX_PATH];
    for (int layer = 0; layer < n_layer; layer++)
        if (!layer_file_name(path, c, layer, NULL)) unlink(path);
}

/* ---- sidecar ----
 *
 * tensors blk.N.less.* of every layer. */

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
    for (size_t i = 0; !status && i < sizeof all / sizeof *all; i++) {
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
    for (size_t i = 0; other && !status && i < other->n_tensor; i++)
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
    for (int layer = 0; !status && layer < n_layer; layer++) {
        struct lk_less_maps maps;
        bool found;
        status = lk_less_checkpoint_load(c, layer, &found, err);
        if (!status && !found)
            status = lk_fail(err, LK_E_IO, "%s.layer-%d is missing; run the command again", c->path,
                             layer);
        if (status) break;
        lk_less_net_export(c->net, c->best_weight, block + layer * layer_bytes, &maps);
        status = add_layer(draft, s, layer, &maps, err);
    }
    if (!status) status = add_others(draft, other, err);
    if (!status) status = lk_atomic_file_open_public(&f, c->path, err);
    if (!status)
        status = lk_atomic_file_close(&f, lk_sidecar_builder_write(draft, f.file, err), err);
    lk_sidecar_builder_free(draft);
    lk_release(ledger, LK_FOR_SCRATCH, block, bytes);
    return status;
}
