/* Weights of K and V that are replaced by factors: their ranks, and which recipes allow them. */
#include "engine/factors.h"

/* Latents of K are those of keys before RoPE: the projection's output is not rotated yet. */
static enum lk_basis_side basis_side(const struct lk_hparams *hp, enum lk_side side) {
    if (side == LK_V) return LK_BASIS_V;
    return hp->rope_mode >= 0 ? LK_BASIS_KPRE : LK_BASIS_K;
}

static int recommended_rank(const struct lk_basis *basis) {
    int rank = 1;
    for (int g = 0; g < basis->n_group; g++)
        if (basis->rank[g] > rank) rank = basis->rank[g];
    rank = (rank + 7) / 8 * 8;
    return rank < basis->n_comp ? rank : basis->n_comp;
}

lk_status lk_factors_new(struct lk_factor **out, const struct lk_sidecar *sidecar,
                         const struct lk_hparams *hp, enum lk_side side, struct lk_ledger *ledger,
                         lk_err *err) {
    const struct lk_basis *basis = sidecar->basis[basis_side(hp, side)];
    struct lk_factor *factor = lk_alloc(ledger, LK_FOR_OTHER, hp->n_layer * sizeof *factor);
    if (!factor) return lk_fail(err, LK_E_NOMEM, "out of memory for %d layers", hp->n_layer);
    bool any = false;
    for (int i = 0; basis && i < hp->n_layer; i++) {
        if (!basis[i].n_group || basis[i].n_group * basis[i].width != hp->n_head_kv * hp->d_head)
            continue;
        factor[i] = (struct lk_factor){.n_group = basis[i].n_group,
                                       .width = basis[i].width,
                                       .n_comp = basis[i].n_comp,
                                       .rank = recommended_rank(&basis[i]),
                                       .down = basis[i].down};
        any = true;
    }
    *out = factor;
    if (any) return LK_OK;
    lk_factors_free(factor, hp->n_layer, ledger);
    *out = NULL;
    return lk_fail(
        err, LK_E_ARG,
        "the sidecar has no bases for %s, so W_%s cannot be replaced by factors; 'lowkey "
        "compress --method palu' creates the bases of all sides",
        side == LK_V                         ? "V"
        : basis_side(hp, side) == LK_BASIS_K ? "K"
                                             : "K before RoPE",
        side == LK_V ? "V" : "K");
}

void lk_factors_free(struct lk_factor *factor, int n_layer, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_OTHER, factor, factor ? n_layer * sizeof *factor : 0);
}

bool lk_factors_replace_weights(const struct lk_model *model) {
    for (int i = 0; i < model->net->hp.n_layer; i++)
        if (model->net->layer[i].rank[LK_K] || model->net->layer[i].rank[LK_V]) return true;
    return false;
}

static lk_status check_level(const struct lk_model *model, const struct lk_level *level, int layer,
                             enum lk_side side, lk_err *err) {
    enum lk_basis_side which = basis_side(&model->net->hp, side);
    const struct lk_basis *basis = &model->sidecar->basis[which][layer];
    const char *pre = which == LK_BASIS_KPRE ? "(pre)" : "";
    int rank = model->net->layer[layer].rank[side];
    if (level->basis != basis)
        return lk_fail(err, LK_E_ARG,
                       "W_%s is replaced by factors, which compute latents%s only: every level of "
                       "the recipe must store %s as 'latent%s'",
                       side == LK_V ? "V" : "K", *pre ? " before RoPE" : "",
                       side == LK_V ? "V" : "K", pre);
    if (level->d_part <= rank) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "layer %d: the recipe requires rank %d for %s, but the factors that replace "
                   "W_%s have rank %d; use at most that, or make a sidecar with a higher --rank",
                   layer, level->d_part, side == LK_V ? "V" : "K", side == LK_V ? "V" : "K", rank);
}

lk_status lk_factors_check(const struct lk_model *model, const struct lk_recipe *recipe,
                           const struct lk_cache *cache, lk_err *err) {
    if (!lk_factors_replace_weights(model)) return LK_OK;
    if (!recipe->eager)
        return lk_fail(err, LK_E_ARG,
                       "the model's weights are replaced by factors, so no exact keys and values "
                       "exist: add 'eager' to the recipe");
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (!model->net->layer[k / 2].rank[kv->side]) continue;
        for (int i = 0; i < kv->n_level; i++) {
            lk_status status = check_level(model, &kv->level[i], k / 2, kv->side, err);
            if (status != LK_OK) return status;
        }
    }
    return LK_OK;
}
