/* Lists the groups of all layers as rank items, and assigns ranks to them. */
#include "lowrank/layer_rank.h"

#include "lowrank/rank.h"

#include <string.h>

struct rank_assigner {
    struct lk_layer_basis *const *layer; /* [side] -> [n_layer] */
    const struct lk_basis_source *source;
    const struct lk_fisher *fisher;
    enum lk_basis_side side[LK_N_BASIS]; /* sides that compete with each other */
    int n_side;
};

/* Fisher score of group g, as the plan computes it. */
static double group_score(const struct rank_assigner *a, enum lk_basis_side side, int layer,
                          int g) {
    const lk_compress_opts *opts = &a->source->plan->opts;
    enum lk_fisher_formula formula = opts->palu_code ? LK_FISHER_CODE : LK_FISHER_PAPER;
    enum lk_side projection = side == LK_BASIS_V ? LK_V : LK_K;
    int heads = a->source->plan->group[side], n_head_kv = a->source->net->hp.n_head_kv;
    if (opts->ranks == LK_RANK_FISHER)
        return lk_fisher_score(a->fisher, layer, projection, g * heads, heads, formula);
    if (opts->ranks == LK_RANK_FISHER_UNIFORM)
        return lk_fisher_score(a->fisher, layer, projection, 0, n_head_kv, formula) /
               (formula == LK_FISHER_PAPER ? n_head_kv / heads : 1);
    return 0;
}

/* The groups of all competing sides, layer by layer. Returns their number. */
static size_t list_groups(const struct rank_assigner *a, struct lk_rank_item *item) {
    size_t n = 0;
    for (int s = 0; s < a->n_side; s++)
        for (int layer = 0; layer < a->source->net->hp.n_layer; layer++) {
            const struct lk_layer_basis *b = &a->layer[a->side[s]][layer];
            for (int g = 0; g < b->basis.n_group; g++)
                item[n++] = (struct lk_rank_item){.width = b->basis.width,
                                                  .error = b->error + (size_t)g * b->basis.width,
                                                  .score = group_score(a, a->side[s], layer, g)};
        }
    return n;
}

/* Assign ranks to the sides that compete. */
static lk_status assign_ranks(const struct rank_assigner *a, lk_err *err) {
    const lk_compress_opts *opts = &a->source->plan->opts;
    const struct lk_hparams *hp = &a->source->net->hp;
    size_t bytes = (size_t)a->n_side * hp->n_head_kv * hp->n_layer * sizeof(struct lk_rank_item),
           at = 0;
    struct lk_rank_item *item = lk_alloc(a->source->ledger, LK_FOR_SCRATCH, bytes);
    if (!item) return lk_fail(err, LK_E_NOMEM, "no memory for ranks");
    size_t n = list_groups(a, item);
    if (opts->ranks == LK_RANK_UNIFORM)
        lk_rank_uniform(item, n, opts->rank, opts->quantum);
    else if (opts->ranks == LK_RANK_ENERGY)
        lk_rank_by_error(item, n, opts->rank, opts->quantum);
    else if (opts->palu_code)
        lk_rank_by_score_palu_code(item, n, opts->rank, opts->quantum);
    else
        lk_rank_by_score(item, n, opts->rank, opts->quantum);
    for (int s = 0; s < a->n_side; s++)
        for (int layer = 0; layer < hp->n_layer; layer++) {
            struct lk_layer_basis *b = &a->layer[a->side[s]][layer];
            for (int g = 0; g < b->basis.n_group; g++) b->rank[g] = item[at++].rank;
        }
    lk_release(a->source->ledger, LK_FOR_SCRATCH, item, bytes);
    return LK_OK;
}

/* With Fisher information, keys and values compete, and keys after RoPE get the ranks of those
 * before RoPE. Otherwise each side is on its own. */
lk_status lk_assign_ranks(struct lk_layer_basis *const layer[LK_N_BASIS],
                          const struct lk_basis_source *source, const struct lk_fisher *fisher,
                          lk_err *err) {
    const int32_t *group = source->plan->group;
    bool by_fisher = source->plan->needs_fisher;
    bool copy_kpre = by_fisher && group[LK_BASIS_K] > 0 && group[LK_BASIS_KPRE] > 0;
    struct rank_assigner a = {.layer = layer, .source = source, .fisher = fisher};
    for (int side = 0; side < LK_N_BASIS; side++) {
        if (group[side] == 0 || (copy_kpre && side == LK_BASIS_K)) continue;
        a.side[a.n_side++] = side;
        if (by_fisher) continue;
        lk_status status = assign_ranks(&a, err);
        if (status != LK_OK) return status;
        a.n_side = 0;
    }
    lk_status status = a.n_side > 0 ? assign_ranks(&a, err) : LK_OK;
    for (int i = 0; status == LK_OK && copy_kpre && i < source->net->hp.n_layer; i++)
        memcpy(layer[LK_BASIS_K][i].rank, layer[LK_BASIS_KPRE][i].rank,
               source->net->hp.n_head_kv / group[LK_BASIS_K] * sizeof(int32_t));
    return status;
}
