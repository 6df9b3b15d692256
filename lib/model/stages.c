/* Divides layers over stages, and leaves out the tensors of the other stages. */
#include "model/stages.h"

#include "model/weights.h"

#include <string.h>

/* Bytes of a bound tensor, in the type that it is computed with. */
static uint64_t bound_bytes(const struct lk_loader *ld, const struct lk_bind *b) {
    int64_t ne[3];
    lk_bound_shape(ld, b, ne);
    bool f32 = ld->opts.f32 || b->use == LK_USE_VECTOR;
    return (uint64_t)ggml_row_size(f32 ? GGML_TYPE_F32 : lk_bound_type(ld, b), ne[0]) *
           (uint64_t)(ne[1] * ne[2]);
}

/* The layer of a bound tensor; -1: it belongs to none. */
static int layer_of(const struct lk_net *net, const struct lk_bind *b) {
    uintptr_t at = (uintptr_t)b->dst, first = (uintptr_t)net->layer;
    size_t n = (size_t)net->hp.n_layer * sizeof *net->layer;
    return at >= first && at < first + n ? (int)((at - first) / sizeof *net->layer) : -1;
}

/* Does only the last stage use the tensor? */
static bool is_of_head(const struct lk_net *net, const struct lk_bind *b) {
    return b->dst == &net->output || b->dst == &net->output_b || b->dst == &net->output_norm ||
           b->dst == &net->output_norm_b;
}

/* Does only the first stage use the tensor? Positions that were learned are a property of the model
 * too, and their table is small. */
static bool is_of_embedding(const struct lk_net *net, const struct lk_bind *b) {
    if (net->hp.n_embd_layer > 0) return false; /* layers look the tokens up, too */
    return b->dst == &net->tok_embd || b->dst == &net->tok_norm || b->dst == &net->tok_norm_b;
}

/* ---- the division ---- */

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

/* Sum up the weights of the layers: bytes, in units that keep squares small. The logits' matrix
 * belongs to the last layer. */
static void weigh_layers(const struct lk_net *net, const struct lk_loader *ld, struct division *d) {
    int n_layer = net->hp.n_layer;
    uint64_t total = 0;
    for (size_t i = 0; i < ld->n_bind; i++) {
        const struct lk_bind *b = &ld->bind[i];
        int layer = is_of_head(net, b) ? n_layer - 1 : layer_of(net, b);
        if (layer < 0 || layer >= n_layer || b->use == LK_USE_TABLE) continue;
        d->sum[layer + 1] += bound_bytes(ld, b);
        total += bound_bytes(ld, b);
    }
    for (int layer = 0; layer < n_layer; layer++)
        d->sum[layer + 1] = d->sum[layer] + d->sum[layer + 1] / ((total >> 20) + 1);
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

/* Set the numbers of layers of each kind before each stage. */
static void count_kinds(const struct lk_hparams *hp, struct lk_stages *s) {
    for (int i = 1; i <= s->n; i++) {
        s->cached[i] = s->cached[i - 1];
        s->recurrent[i] = s->recurrent[i - 1];
        for (int layer = s->first[i - 1]; layer < s->first[i]; layer++) {
            s->recurrent[i] += hp->is_recurrent[layer] != 0;
            s->cached[i] += !hp->is_recurrent[layer] && !lk_hparams_shares(hp, layer);
        }
    }
}

lk_status lk_stages_divide(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    struct lk_stages *s = &net->stages;
    *s = (struct lk_stages){.own = ld->opts.stage, .n = ld->opts.n_stage};
    if (s->n <= 1) {
        *s = (struct lk_stages){.n = 1};
        s->first[1] = hp->n_layer;
    } else {
        struct division *d = lk_alloc(ld->ledger, LK_FOR_OTHER, sizeof *d);
        if (!d)
            return lk_fail(err, LK_E_NOMEM, "not enough memory to divide %d layers", hp->n_layer);
        int max = find_starts(hp, d->can_start);
        if (max > LK_MAX_STAGES) max = LK_MAX_STAGES;
        if (s->n <= max) {
            weigh_layers(net, ld, d);
            find_division(d, hp->n_layer, s);
        }
        lk_release(ld->ledger, LK_FOR_OTHER, d, sizeof *d);
        if (s->n > max)
            return lk_fail(
                err, LK_E_UNSUPPORTED,
                "the model cannot be divided into %d stages, but into %d at most: it has "
                "%d layers%s",
                s->n, max, hp->n_layer,
                hp->n_shared > 0 ? ", and those that share K and V are on one stage" : "");
    }
    count_kinds(hp, s);
    hp->held_recurrent[0] = s->recurrent[s->own];
    hp->held_recurrent[1] = s->recurrent[s->own + 1];
    for (size_t i = 0; i < ld->n_bind; i++) {
        struct lk_bind *b = &ld->bind[i];
        int layer = layer_of(net, b);
        b->is_elsewhere = (layer >= 0 && !lk_stages_holds(s, layer)) ||
                          (is_of_head(net, b) && !lk_stages_is_last(s)) ||
                          (is_of_embedding(net, b) && s->own > 0);
        uint64_t *bytes = b->use == LK_USE_TABLE ? &net->table_bytes : &net->matrix_bytes;
        *bytes += b->is_elsewhere ? 0 : bound_bytes(ld, b);
    }
    return LK_OK;
}
