/* Sidecars of tiny models: random bases, LESS networks and adapters. */
#include "support_sidecar.h"

#include "absorb/less.h"
#include "codec/f16.h"
#include "engine/adapters.h"
#include "engine/model.h"
#include "sidecar/sidecar_write.h"
#include "support.h"
#include "support_basis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_HIDDEN = 16, N_FEATURE = 8 };

/* The largest networks of a layer, which all parts are read from. */
struct networks {
    uint16_t *half;
    float *full;
};

static bool add_tensor(struct lk_sidecar_builder *builder, int layer, const char *part,
                       enum lk_sidecar_type type, const int32_t ne[3], void *data) {
    struct lk_sidecar_tensor t = {.ne = {ne[0], ne[1], ne[2]}, .type = type, .data = data};
    snprintf(t.name, sizeof t.name, "blk.%d.less.%s", layer, part);
    return lk_sidecar_builder_add(builder, &t, NULL) == LK_OK;
}

static bool add_networks(struct lk_sidecar_builder *builder, const struct lk_hparams *hp, int layer,
                         const struct networks *n) {
    const struct {
        const char *part;
        enum lk_sidecar_type type;
        int32_t ne[3];
    } all[] = {{"phi.w1", LK_SIDECAR_F16, {N_HIDDEN, hp->d_head, hp->n_head}},
               {"phi.w2", LK_SIDECAR_F16, {N_FEATURE, N_HIDDEN, hp->n_head}},
               {"psi.w1", LK_SIDECAR_F16, {N_HIDDEN, hp->d_head, hp->n_head_kv}},
               {"psi.w2", LK_SIDECAR_F16, {N_FEATURE, N_HIDDEN, hp->n_head_kv}},
               {"phi.level", LK_SIDECAR_F32, {hp->n_head, 1, 1}},
               {"psi.w3", LK_SIDECAR_F32, {N_FEATURE, N_FEATURE, hp->n_head_kv}},
               {"psi.s1", LK_SIDECAR_F32, {N_FEATURE, hp->n_head_kv, 1}},
               {"psi.s2", LK_SIDECAR_F32, {N_FEATURE, hp->n_head_kv, 1}}};
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof all / sizeof *all; i++) {
        bool is_half = all[i].type == LK_SIDECAR_F16;
        ok = add_tensor(builder, layer, all[i].part, all[i].type, all[i].ne,
                        is_half ? (void *)n->half : (void *)n->full);
    }
    return ok;
}

static struct networks random_networks(const struct lk_hparams *hp, struct random *r) {
    size_t n = (size_t)N_HIDDEN * hp->d_head * hp->n_head;
    struct networks out = {malloc(n * sizeof *out.half), malloc(n * sizeof *out.full)};
    float scale = 1 / sqrtf((float)hp->d_head);
    for (size_t i = 0; i < n; i++) {
        out.half[i] = lk_f32_to_f16(scale * random_gauss(r));
        out.full[i] = 0.5f * random_gauss(r);
    }
    return out;
}

bool write_sidecar(const char *path, const lk_model *model, uint64_t seed) {
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_sidecar_info info = {
        .method = "palu",
        .options = "random",
        .model = {model->net->fingerprint, lk_hparams_cached(hp), hp->n_head_kv, hp->d_head},
        .calibration_hash = seed};
    struct lk_ledger ledger = {0};
    struct lk_sidecar_builder *builder = NULL;
    struct random r = {seed};
    struct lk_basis basis[LK_N_BASIS];
    struct networks networks = random_networks(hp, &r);
    int group = hp->n_head_kv % 2 ? 1 : 2, width = group * hp->d_head,
        n_group = hp->n_head_kv / group;
    float *error = calloc((size_t)n_group * width, sizeof *error);
    bool ok = lk_sidecar_builder_new(&builder, &info, &ledger, NULL) == LK_OK;
    for (int side = 0; side < LK_N_BASIS; side++) {
        basis[side] = random_basis(&r, n_group, width, width, width / 2, side == LK_BASIS_V,
                                   side == LK_BASIS_KPRE);
        basis[side].error = error;
        for (int layer = 0; ok && layer < lk_hparams_cached(hp); layer++)
            ok = lk_sidecar_builder_add_basis(builder, layer, side, &basis[side], NULL) == LK_OK;
    }
    for (int layer = 0; ok && layer < lk_hparams_cached(hp); layer++)
        ok = add_networks(builder, hp, layer, &networks);
    FILE *file = ok ? fopen(path, "wb") : NULL;
    ok = file && lk_sidecar_builder_write(builder, file, NULL) == LK_OK;
    ok = file && fclose(file) == 0 && ok;
    lk_sidecar_builder_free(builder);
    for (int side = 0; side < LK_N_BASIS; side++) free_basis(&basis[side]);
    free(error);
    free(networks.half);
    free(networks.full);
    return ok;
}

bool write_sidecar_for(const char *path, const char *model_path, uint64_t seed) {
    lk_model *model = NULL;
    lk_model_opts opts = {.n_threads = 1, .header_only = true};
    bool ok =
        lk_model_open(&model, model_path, &opts, NULL) == LK_OK && write_sidecar(path, model, seed);
    lk_model_free(model);
    return ok;
}

/* The adapters of a layer; `half` has room for a factor each. */
static bool add_adapters(struct lk_sidecar_builder *builder, const struct lk_hparams *hp, int layer,
                         struct random *r, float size, uint16_t *half, size_t n_half) {
    enum { RANK = 3 };
    bool ok = true;
    for (int i = 0; i < 2 * LK_N_ADAPTED; i++, half += n_half) {
        enum lk_adapted which = (enum lk_adapted)(i / 2);
        int32_t n_in = lk_adapter_inputs(hp, which), n_out = lk_adapter_outputs(hp, which);
        struct lk_sidecar_tensor t = {.ne = {i % 2 ? RANK : n_in, i % 2 ? n_out : RANK, 1},
                                      .type = LK_SIDECAR_F16,
                                      .data = half};
        for (int j = 0; j < t.ne[0] * t.ne[1]; j++)
            half[j] = lk_f32_to_f16(size * (2 * random_uniform(r) - 1));
        lk_adapter_tensor_name(t.name, layer, which, i % 2 ? 'b' : 'a');
        ok = ok && lk_sidecar_builder_add(builder, &t, NULL) == LK_OK;
    }
    return ok;
}

bool write_adapters(const char *path, const lk_model *model, const char *other, float size,
                    uint64_t seed) {
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_sidecar_info info = {
        .method = "lora",
        .options = "random",
        .model = {model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head}};
    struct lk_ledger ledger = {0};
    struct lk_sidecar_builder *builder = NULL;
    struct lk_sidecar *bases = NULL;
    struct random r = {seed};
    size_t n_half = 3 * (size_t)(hp->n_embd + hp->n_head * hp->d_head),
           n_layer = 2 * LK_N_ADAPTED * n_half;
    uint16_t *half = malloc((size_t)hp->n_layer * n_layer * sizeof *half);
    bool ok = lk_sidecar_builder_new(&builder, &info, &ledger, NULL) == LK_OK;
    for (int layer = 0; ok && layer < hp->n_layer; layer++)
        ok = add_adapters(builder, hp, layer, &r, size, half + layer * n_layer, n_half);
    if (other) ok = ok && lk_sidecar_open(&bases, other, &info.model, &ledger, NULL) == LK_OK;
    for (size_t i = 0; ok && bases && i < bases->n_tensor; i++)
        ok = lk_sidecar_builder_add(builder, &bases->tensor[i], NULL) == LK_OK;
    FILE *file = ok ? fopen(path, "wb") : NULL;
    ok = file && lk_sidecar_builder_write(builder, file, NULL) == LK_OK;
    ok = file && fclose(file) == 0 && ok;
    lk_sidecar_builder_free(builder);
    lk_sidecar_close(bases);
    free(half);
    return ok;
}
