/* Divides the layers of a model over stages. */
#include "cluster/stages.h"

#include <string.h>

/* The first layer that layer `layer` attends to: itself, or the one whose K and V it shares. */
static int source_of(const struct lk_hparams *hp, int layer) {
    int source = layer;
    if (!lk_hparams_shares(hp, layer)) return layer;
    while (lk_hparams_shares(hp, source) || hp->is_recurrent[source] ||
           hp->index[source] != hp->index[layer])
        source--;
    return source;
}

/* Can a stage start with each layer? can [n_layer + 1]. Returns the number of such layers. */
static int find_starts(const struct lk_hparams *hp, bool *can) {
    int first = hp->n_layer, n = 0;
    for (int layer = hp->n_layer - 1; layer >= 0; layer--) {
        int source = source_of(hp, layer);
        if (source < first) first = source;
        can[layer] = first == layer;
        n += can[layer];
    }
    can[hp->n_layer] = true;
    return n;
}

/* The best division of the first layers, for each number of stages and of layers. */
struct division {
    uint64_t sum[LK_MAX_LAYERS + 1]; /* weight of all layers before this one */
    bool can_start[LK_MAX_LAYERS + 1];
    uint64_t cost[LK_MAX_STAGES + 1][LK_MAX_LAYERS + 1]; /* sum of the squares of stages */
    int16_t start[LK_MAX_STAGES + 1][LK_MAX_LAYERS + 1]; /* of the last stage */
};

/* Sum up the weights of the layers, in units that keep squares small. */
static void sum_weights(const uint64_t *bytes, int n_layer, struct division *d) {
    uint64_t total = 0;
    for (int layer = 0; layer < n_layer; layer++) total += bytes[layer];
    for (int layer = 0; layer < n_layer; layer++)
        d->sum[layer + 1] = d->sum[layer] + bytes[layer] / ((total >> 20) + 1);
}

/* Minimize the sum of the squares of the stages' weights. */
static void find_division(struct division *d, int n_layer, struct lk_stages *s) {
    memset(d->cost, 0xff, sizeof d->cost); /* impossible */
    d->cost[0][0] = 0;
    for (int k = 1; k <= s->n; k++)
        for (int end = k; end <= n_layer; end++)
            for (int at = k - 1; at < end; at++) {
                uint64_t weight = d->sum[end] - d->sum[at], before = d->cost[k - 1][at];
                if (!d->can_start[at] || before == UINT64_MAX) continue;
                if (before + weight * weight >= d->cost[k][end]) continue;
                d->cost[k][end] = before + weight * weight;
                d->start[k][end] = (int16_t)at;
            }
    s->first[s->n] = n_layer;
    for (int k = s->n; k > 0; k--) s->first[k - 1] = d->start[k][s->first[k]];
}

lk_status lk_stages_choose(const struct lk_hparams *hp, const uint64_t *bytes, void *user,
                           int32_t *first, int32_t *end, lk_err *err) {
    struct lk_stages *s = user;
    struct lk_ledger ledger = {0};
    struct division *d = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *d);
    if (!d) return lk_fail(err, LK_E_NOMEM, "not enough memory to divide %d layers", hp->n_layer);
    int max = find_starts(hp, d->can_start);
    if (max > LK_MAX_STAGES) max = LK_MAX_STAGES;
    if (s->n <= max) {
        sum_weights(bytes, hp->n_layer, d);
        find_division(d, hp->n_layer, s);
        *first = s->first[s->own];
        *end = s->first[s->own + 1];
    }
    lk_release(&ledger, LK_FOR_OTHER, d, sizeof *d);
    if (s->n <= max) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "the model cannot be divided into %d stages, but into %d at most: it has %d "
                   "layers%s",
                   s->n, max, hp->n_layer,
                   hp->n_shared > 0 ? ", and layers that share K and V are on one stage" : "");
}
