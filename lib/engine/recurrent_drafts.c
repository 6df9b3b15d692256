/* Repeating the recurrence of a part of a pass. */
#include "engine/recurrent_drafts.h"

#include "engine/session_state.h"

#include <string.h>

/* Passes have at least room for so many tokens, so that few sizes are allocated. */
enum { MIN_TOKENS = 8 };

/* userdata of the nodes of a layer. */
struct lk_repeated_layer {
    struct lk_session *session;
    int layer;
};

static size_t input_floats(const struct lk_hparams *hp, int n_tok) {
    int gates = hp->recurrence.kind == LK_SHORT_CONV ? 0 : 2 * hp->recurrence.n_v_head;
    return (size_t)n_tok * (lk_recurrence_channels(&hp->recurrence) + gates);
}

/* Recurrent layers that this process holds, or `min` if they are fewer. */
static size_t n_held(const struct lk_hparams *hp, int min) {
    int n = hp->held_recurrent[1] - hp->held_recurrent[0];
    return (size_t)(n > min ? n : min);
}

static bool is_held(const struct lk_hparams *hp, int layer) {
    return hp->is_recurrent[layer] && hp->index[layer] >= hp->held_recurrent[0] &&
           hp->index[layer] < hp->held_recurrent[1];
}

static size_t input_bytes(const struct lk_hparams *hp, int n_tok) {
    return n_held(hp, 1) * input_floats(hp, n_tok) * sizeof(float);
}

static int round_up(int n_tok) {
    int n = MIN_TOKENS;
    while (n < n_tok) n *= 2;
    return n < LK_DRAFT_TOKENS ? n : LK_DRAFT_TOKENS;
}

uint64_t lk_recurrent_drafts_bytes(const struct lk_hparams *hp, int n_tok) {
    if (hp->n_recurrent == 0) return 0;
    const size_t per_node = 1024; /* at least what ggml needs, and a node's padding */
    size_t rows =
        2 * (size_t)round_up(n_tok) * lk_recurrence_channels(&hp->recurrence) * sizeof(float);
    return lk_recurrent_bytes(hp) + input_bytes(hp, round_up(n_tok)) + rows +
           n_held(hp, 1) * (sizeof(struct lk_repeated_layer) + 2 * per_node) + 16 * per_node;
}

struct lk_recurrent_input lk_recurrent_input(const struct lk_recurrent_drafts *d,
                                             const struct lk_hparams *hp, int layer) {
    size_t n = d->n_cap;
    int at = hp->index[layer] - hp->held_recurrent[0];
    float *mixed = d->input + at * input_floats(hp, d->n_cap),
          *decay = mixed + n * lk_recurrence_channels(&hp->recurrence);
    if (hp->recurrence.kind == LK_SHORT_CONV) return (struct lk_recurrent_input){mixed, NULL, NULL};
    return (struct lk_recurrent_input){mixed, decay, decay + n * hp->recurrence.n_v_head};
}

/* ---- the graph: thread ith of nth does its share of a layer ---- */

/* Convolves the kept tokens' projections, and writes those that the next tokens need. */
static void convolve_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct lk_repeated_layer *l = userdata;
    const struct lk_recurrent_drafts *d = &l->session->drafts;
    const struct lk_net *net = l->session->model->net;
    const struct lk_recurrence_shape *shape = &net->hp.recurrence;
    struct lk_recurrence_weights weights = lk_recurrent_weights(net, l->layer);
    const float *from = lk_recurrent_state(&net->hp, d->before, l->layer),
                *x = lk_recurrent_input(d, &net->hp, l->layer).mixed;
    float *to = lk_recurrent_state(&net->hp, l->session->recurrent, l->layer);
    int64_t channels = lk_recurrence_channels(shape);
    int first = (int)(channels * ith / nth), last = (int)(channels * (ith + 1) / nth);
    if (shape->kind != LK_SHORT_CONV) /* nothing else is needed of the output */
        lk_recurrence_conv(shape, &weights, from, x, d->n_keep, first, last, dst->data);
    lk_recurrence_conv_advance(shape, from, to, x, d->n_keep, first, last);
}

/* src: the convolved projections. The outputs go to unused memory: dst is [n_cap][n_v_head]
 * [d_value]. */
static void recurrence_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct lk_repeated_layer *l = userdata;
    const struct lk_recurrent_drafts *d = &l->session->drafts;
    const struct lk_model *model = l->session->model;
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_recurrence_weights weights = lk_recurrent_weights(model->net, l->layer);
    struct lk_recurrent_input input = lk_recurrent_input(d, hp, l->layer);
    for (int head = ith; head < hp->recurrence.n_v_head; head += nth)
        lk_recurrence_head(&hp->recurrence, &weights, model->kernels,
                           lk_recurrent_state(hp, d->before, l->layer),
                           lk_recurrent_state(hp, l->session->recurrent, l->layer), head,
                           dst->src[0]->data, input.decay, input.beta, d->n_keep, dst->data);
}

static lk_status build_graph(struct lk_session *s, struct lk_repeated_layer *layer, int n_cap,
                             struct lk_graph *g, lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    const struct lk_recurrence_shape *shape = &hp->recurrence;
    lk_status status = lk_graph_begin(g, 2 * (int)n_held(hp, 0) + 2, &s->ledger, err);
    if (status) return status;
    struct ggml_tensor *after = lk_graph_input(g, 1);
    for (size_t i = 0; i < n_held(hp, 0); i++) {
        struct lk_repeated_layer *l = &layer[i];
        if (shape->kind == LK_SHORT_CONV) {
            after = lk_graph_effect(g->ctx, convolve_node, &after, 1, l);
            continue;
        }
        after = ggml_custom_4d(g->ctx, GGML_TYPE_F32, lk_recurrence_channels(shape), n_cap, 1, 1,
                               &after, 1, convolve_node, GGML_N_TASKS_MAX, l);
        after = ggml_custom_4d(g->ctx, GGML_TYPE_F32, (int64_t)shape->n_v_head * shape->d_value,
                               n_cap, 1, 1, &after, 1, recurrence_node, GGML_N_TASKS_MAX, l);
    }
    ggml_build_forward_expand(g->graph, after);
    status = lk_graph_finish(g, &s->ledger, err);
    return status ? status : lk_graph_reserve_work(g, s->model, err);
}

/* ---- memory ---- */

static void free_drafts(struct lk_recurrent_drafts *d, const struct lk_hparams *hp,
                        struct lk_ledger *ledger) {
    lk_graph_free(&d->graph, ledger);
    lk_release(ledger, LK_FOR_SCRATCH, d->before, lk_recurrent_bytes(hp));
    lk_release(ledger, LK_FOR_SCRATCH, d->input, input_bytes(hp, d->n_cap));
    lk_release(ledger, LK_FOR_SCRATCH, d->layer, n_held(hp, 1) * sizeof *d->layer);
}

void lk_recurrent_drafts_free(struct lk_session *s) {
    free_drafts(&s->drafts, &s->model->net->hp, &s->ledger);
    s->drafts = (struct lk_recurrent_drafts){0};
}

/* Copy the last pass, which fits. */
static void copy_pass(const struct lk_recurrent_drafts *from, struct lk_recurrent_drafts *to,
                      const struct lk_hparams *hp) {
    size_t n = from->n_cap * sizeof(float), n_head = hp->recurrence.n_v_head;
    memcpy(to->before, from->before, lk_recurrent_bytes(hp));
    for (int layer = 0; layer < hp->n_layer; layer++) {
        if (!is_held(hp, layer)) continue;
        struct lk_recurrent_input x = lk_recurrent_input(from, hp, layer),
                                  y = lk_recurrent_input(to, hp, layer);
        memcpy(y.mixed, x.mixed, n * lk_recurrence_channels(&hp->recurrence));
        if (x.decay) memcpy(y.decay, x.decay, n * n_head);
        if (x.beta) memcpy(y.beta, x.beta, n * n_head);
    }
}

lk_status lk_recurrent_drafts_reserve(struct lk_session *s, int n_tok, lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    struct lk_recurrent_drafts *old = &s->drafts, d = {.n_cap = round_up(n_tok)};
    if (n_tok <= old->n_cap) return LK_OK;
    d.before = lk_alloc(&s->ledger, LK_FOR_SCRATCH, lk_recurrent_bytes(hp));
    d.input = lk_alloc(&s->ledger, LK_FOR_SCRATCH, input_bytes(hp, d.n_cap));
    d.layer = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n_held(hp, 1) * sizeof *d.layer);
    lk_status status =
        d.before && d.input && d.layer
            ? LK_OK
            : lk_fail(err, LK_E_NOMEM, "out of memory for drafts of %d tokens", n_tok);
    for (int layer = 0; !status && layer < hp->n_layer; layer++)
        if (is_held(hp, layer))
            d.layer[hp->index[layer] - hp->held_recurrent[0]] =
                (struct lk_repeated_layer){s, layer};
    if (!status) status = build_graph(s, d.layer, d.n_cap, &d.graph, err);
    if (status) {
        free_drafts(&d, hp, &s->ledger);
        return status;
    }
    if (old->before) copy_pass(old, &d, hp);
    free_drafts(old, hp, &s->ledger);
    *old = d;
    return LK_OK;
}

/* ---- a pass ---- */

void lk_recurrent_drafts_begin(struct lk_session *s) {
    float *states = s->recurrent;
    s->recurrent = s->drafts.before;
    s->drafts.before = states;
}

lk_status lk_recurrent_drafts_repeat(struct lk_session *s, int n_tok, lk_err *err) {
    s->drafts.n_keep = n_tok;
    return lk_graph_run(&s->drafts.graph, s->model, err);
}
