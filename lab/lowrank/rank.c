/* Distribution of ranks: uniform, by error, and by score. */
#include "lowrank/rank.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

int32_t lk_rank_round(int32_t width, double share, int32_t quantum) {
    int32_t rank = (int32_t)floor(share * width / quantum + 0.5) * quantum;
    if (rank < quantum) rank = quantum;
    return rank < width ? rank : width;
}

void lk_rank_uniform(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    for (size_t i = 0; i < n; i++) item[i].rank = lk_rank_round(item[i].width, share, quantum);
}

static int32_t next_rank(const struct lk_rank_item *item, int32_t quantum) {
    return item->width - item->rank < quantum ? item->width : item->rank + quantum;
}

/* Error saved per component by the item's next quantum; negative if the item is full. */
static double next_saving(const struct lk_rank_item *item, int32_t quantum) {
    int32_t next = next_rank(item, quantum);
    return next == item->rank ? -1
                              : ((double)item->error[item->rank - 1] - item->error[next - 1]) /
                                    (next - item->rank);
}

void lk_rank_by_error(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    int64_t left = 0;
    for (size_t i = 0; i < n; i++) {
        left += lk_rank_round(item[i].width, share, quantum);
        item[i].rank = quantum < item[i].width ? quantum : item[i].width;
        left -= item[i].rank;
    }
    while (left > 0) {
        size_t best = 0;
        double max = -1;
        for (size_t i = 0; i < n; i++) {
            double saving = next_rank(&item[i], quantum) - item[i].rank <= left
                                ? next_saving(&item[i], quantum)
                                : -1;
            if (saving > max) {
                max = saving;
                best = i;
            }
        }
        if (max < 0) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

/* The rank in proportion to the score, limited to one quantum and the width. */
static double proportional_rank(const struct lk_rank_item *item, double factor, int32_t quantum) {
    double rank = factor * item->score;
    if (rank < quantum) rank = quantum;
    return rank < item->width ? rank : item->width;
}

/* The factor for which proportional ranks add up to `total`, by bisection. */
static double find_factor(const struct lk_rank_item *item, size_t n, double total,
                          int32_t quantum) {
    enum { GROW_STEPS = 200, BISECT_STEPS = 100 };
    double low = 0, high = 1e-30;
    for (int step = 0; step < GROW_STEPS + BISECT_STEPS; step++) {
        double factor = step < GROW_STEPS ? high : (low + high) / 2, sum = 0;
        for (size_t i = 0; i < n; i++) sum += proportional_rank(&item[i], factor, quantum);
        if (step < GROW_STEPS)
            high *= sum < total ? 4 : 1;
        else if (sum < total)
            low = factor;
        else
            high = factor;
    }
    return low;
}

/* The rank still missing to the proportional one, in quanta; -infinity if the item is full. */
static double remainder_of(const struct lk_rank_item *item, double factor, int32_t quantum) {
    if (next_rank(item, quantum) == item->rank) return -INFINITY;
    return (proportional_rank(item, factor, quantum) - item->rank) / quantum;
}

void lk_rank_by_score(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    int64_t left = 0;
    for (size_t i = 0; i < n; i++) left += lk_rank_round(item[i].width, share, quantum);
    double factor = find_factor(item, n, (double)left, quantum);
    for (size_t i = 0; i < n; i++) {
        item[i].rank = (int32_t)(proportional_rank(&item[i], factor, quantum) / quantum) * quantum;
        if (item[i].rank == 0) item[i].rank = item[i].width; /* narrower than a quantum */
        left -= item[i].rank;
    }
    while (left >= quantum) {
        size_t best = 0;
        double max = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            double remainder = remainder_of(&item[i], factor, quantum);
            if (remainder > max) {
                max = remainder;
                best = i;
            }
        }
        if (max == -INFINITY) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

/* ---- ranks of all layers ---- */

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
    enum lk_side projection = side == LK_BASIS_V ? LK_V : LK_K;
    int heads = a->source->plan->group[side];
    if (opts->ranks != LK_RANK_FISHER) return 0;
    return lk_fisher_score(a->fisher, layer, projection, g * heads, heads);
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
        if (status) return status;
        a.n_side = 0;
    }
    lk_status status = a.n_side > 0 ? assign_ranks(&a, err) : LK_OK;
    for (int i = 0; !status && copy_kpre && i < source->net->hp.n_layer; i++)
        memcpy(layer[LK_BASIS_K][i].rank, layer[LK_BASIS_KPRE][i].rank,
               source->net->hp.n_head_kv / group[LK_BASIS_K] * sizeof(int32_t));
    return status;
}
