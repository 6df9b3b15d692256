/* Weights of K and V that are replaced by factors: their ranks, and which recipes allow them. */
#include "engine/factors.h"

#include "cache/basis_rows.h"

/* Latents of K are those of keys before RoPE: the projection's output is not rotated yet. */
static enum lk_basis_side basis_side(const struct lk_hparams *hp, enum lk_side side) {
    if (side == LK_V) return LK_BASIS_V;
    return hp->rope_mode >= 0 ? LK_BASIS_KPRE : LK_BASIS_K;
}

static const float *down_row(const void *basis, int group, int comp, float *buf) {
    const struct lk_basis *b = basis;
    return lk_basis_row(b, LK_BASIS_DOWN, group, comp, 0, b->width, buf);
}

/* Bytes of the factors of all layers, followed by their ranks. */
static size_t factors_bytes(const struct lk_hparams *hp) {
    return hp->n_layer * (sizeof(struct lk_factor) + hp->n_head_kv * sizeof(int32_t));
}

lk_status lk_factors_new(struct lk_factor **out, const struct lk_sidecar *sidecar,
                         const struct lk_hparams *hp, enum lk_side side, struct lk_ledger *ledger,
                         lk_err *err) {
    enum lk_basis_side which = basis_side(hp, side);
    const struct lk_basis *basis = sidecar->basis[which];
    struct lk_factor *factor = lk_alloc(ledger, LK_FOR_OTHER, factors_bytes(hp));
    if (!factor) return lk_fail(err, LK_E_NOMEM, "out of memory for %d layers", hp->n_layer);
    int32_t *rank = (int32_t *)(factor + hp->n_layer);
    bool any = false;
    for (int i = 0; basis && i < hp->n_layer; i++, rank += hp->n_head_kv) {
        const struct lk_basis *b = &basis[i];
        if (!b->n_group || b->n_group * b->width != hp->n_head_kv * hp->d_head ||
            b->width % hp->d_head)
            continue;
        for (int g = 0; g < b->n_group; g++) {
            int rounded = (b->rank[g] + 7) / 8 * 8;
            rank[g] = rounded < b->n_comp ? rounded : b->n_comp;
        }
        factor[i] = (struct lk_factor){
            .n_group = b->n_group, .width = b->width, .rank = rank, .down = down_row, .user = b};
        any = true;
    }
    if (any) {
        *out = factor;
        return LK_OK;
    }
    lk_factors_free(factor, hp, ledger);
    const char *name = which == LK_BASIS_V ? "V" : which == LK_BASIS_K ? "K" : "K before RoPE";
    return lk_fail(
        err, LK_E_ARG,
        "the sidecar has no bases for %s, so W_%s cannot be replaced by factors; 'lowkey "
        "compress --method palu' creates the bases of all sides",
        name, side == LK_V ? "V" : "K");
}

void lk_factors_free(struct lk_factor *factor, const struct lk_hparams *hp,
                     struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_OTHER, factor, factor ? factors_bytes(hp) : 0);
}

unsigned lk_factors_sides(const struct lk_model *model) {
    return (model->factor[LK_K] ? LK_FACTORS_K : 0u) | (model->factor[LK_V] ? LK_FACTORS_V : 0u);
}

static lk_status check_level(const struct lk_model *model, const struct lk_kv *kv, int i, int layer,
                             lk_err *err) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_factor *factor = &model->factor[kv->side][layer];
    bool pre = basis_side(&model->net->hp, kv->side) == LK_BASIS_KPRE;
    int projection = pre ? LK_PROJECTION_LATENT_PRE : LK_PROJECTION_LATENT;
    char name = kv->side == LK_V ? 'V' : 'K';
    if (lk_limit_is_zero(&kv->rule[i].limit)) return LK_OK;
    if (kv->rule[i].codec.projection != projection)
        return lk_fail(err, LK_E_ARG,
                       "W_%c is replaced by factors, which compute latents%s only: every level of "
                       "the recipe must store %c as 'latent%s'",
                       name, pre ? " before RoPE" : "", name, pre ? "(pre)" : "");
    for (int part = 0; part < level->n_part; part++) {
        int rank = lk_level_part_channels(level, part);
        if (rank > factor->rank[part])
            return lk_fail(err, LK_E_ARG,
                           "layer %d: the recipe requires rank %d for %c, but the factors that "
                           "replace W_%c have rank %d; use at most that, or make a sidecar with a "
                           "higher --rank",
                           layer, rank, name, name, factor->rank[part]);
    }
    return LK_OK;
}

lk_status lk_factors_check(const struct lk_model *model, const struct lk_recipe *recipe,
                           const struct lk_cache *cache, lk_err *err) {
    if (!lk_factors_sides(model)) return LK_OK;
    if (!recipe->eager)
        return lk_fail(err, LK_E_ARG,
                       "the model's weights are replaced by factors, so no exact keys and values "
                       "exist: add 'eager' to the recipe");
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        const struct lk_factor *factor = model->factor[kv->side];
        if (!factor || !factor[k / 2].rank) continue;
        for (int i = 0; i < kv->n_level; i++) {
            lk_status status = check_level(model, kv, i, k / 2, err);
            if (status != LK_OK) return status;
        }
    }
    return LK_OK;
}
