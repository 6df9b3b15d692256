/* The states of recurrent layers, going back in them within drafts, and the nodes that update
 * them. */
#include "engine/recurrent.h"

#include "engine/session_state.h"
#include "model/recurrence_nodes.h"

#include <math.h>
#include <string.h>

enum { LINE = 16 }; /* floats of a cache line */

/* In whole cache lines, as the ledger counts them. */
static size_t layer_floats(const struct lk_hparams *hp) {
    return (lk_recurrence_state_floats(&hp->recurrence) + LINE - 1) / LINE * LINE;
}

/* Bytes of n_layer states. */
static size_t states_bytes(const struct lk_hparams *hp, int n_layer) {
    size_t n = (size_t)n_layer * lk_recurrent_layer_bytes(hp) / sizeof(float);
    if (hp->n_recurrent > 0 && n == 0) n = LINE; /* a session without states is another kind */
    return n * sizeof(float);
}

size_t lk_recurrent_bytes(const struct lk_hparams *hp) {
    return states_bytes(hp, hp->held_recurrent[1] - hp->held_recurrent[0]);
}

/* Recurrent layers that are held here, in RAM. They are the first ones. */
static int n_in_ram(const struct lk_net *net) {
    const struct lk_hparams *hp = &net->hp;
    return hp->held_recurrent[1] - hp->held_recurrent[0] - lk_recurrence_count_there(net);
}

size_t lk_recurrent_ram_bytes(const struct lk_net *net) {
    return states_bytes(&net->hp, n_in_ram(net));
}

size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp) {
    return hp->n_recurrent > 0 ? layer_floats(hp) * sizeof(float) : 0;
}

size_t lk_recurrent_saved_bytes(const struct lk_hparams *hp) {
    bool all = hp->held_recurrent[1] - hp->held_recurrent[0] == hp->n_recurrent;
    return all ? lk_recurrent_bytes(hp) : (size_t)hp->n_recurrent * lk_recurrent_layer_bytes(hp);
}

float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer) {
    return states + (size_t)(hp->index[layer] - hp->held_recurrent[0]) * layer_floats(hp);
}

/* The weights of layer `layer` that its recurrence needs. */
static struct lk_recurrence_weights recurrent_weights(const struct lk_net *net, int layer) {
    const struct lk_layer *l = &net->layer[layer];
    return (struct lk_recurrence_weights){.conv = l->conv->data,
                                          .conv_b = l->conv_b ? l->conv_b->data : NULL,
                                          .skip = l->skip ? l->skip->data : NULL};
}

void lk_recurrent_write(const struct lk_model *model, const float *states,
                        struct lk_saving *saving) {
    const struct lk_hparams *hp = &model->net->hp;
    for (int layer = 0; layer < hp->n_layer; layer++) {
        if (!hp->is_recurrent[layer]) continue;
        const float *state =
            lk_net_has(model->net, layer) ? lk_recurrent_state(hp, (float *)states, layer) : NULL;
        lk_saving_put(saving, model->holder ? model->holder[layer] : 0, state,
                      lk_recurrent_layer_bytes(hp));
    }
}

void lk_recurrent_restore(const struct lk_net *net, float *states, struct lk_restoring *from) {
    const struct lk_hparams *hp = &net->hp;
    size_t layer = lk_recurrent_layer_bytes(hp), all = lk_recurrent_saved_bytes(hp),
           before = (size_t)hp->held_recurrent[0] * layer,
           n = (size_t)hp->held_recurrent[1] * layer - before;
    lk_restoring_get(from, NULL, before);
    lk_restoring_get(from, states, n);
    lk_restoring_get(from, NULL, all - before - n);
}

/* ---- the states of a session ---- */

lk_status lk_recurrent_new(struct lk_session *s, lk_err *err) {
    size_t size = lk_recurrent_ram_bytes(s->model->net);
    if (size == 0) return LK_OK;
    s->recurrent = lk_alloc(&s->ledger, LK_FOR_CACHE, size);
    if (!s->recurrent)
        return lk_fail(err, LK_E_NOMEM, "out of memory for the states of recurrent layers");
    return lk_recurrent_there_new(s, err);
}

void lk_recurrent_free(struct lk_session *s) {
    lk_recurrent_there_free(s);
    lk_release(&s->ledger, LK_FOR_CACHE, s->recurrent, lk_recurrent_ram_bytes(s->model->net));
    s->recurrent = NULL;
}

void lk_recurrent_clear(struct lk_session *s) {
    if (s->recurrent) memset(s->recurrent, 0, lk_recurrent_ram_bytes(s->model->net));
    s->recurrent_there.is_old = s->recurrent_there.now.buffer != NULL;
}

lk_status lk_recurrent_get_layer(const struct lk_session *s, int layer, float *states,
                                 lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    float *to = lk_recurrent_state(hp, states, layer);
    if (lk_net_recurs_there(s->model->net, layer)) return lk_recurrent_there_get(s, layer, to, err);
    memcpy(to, lk_recurrent_state(hp, s->recurrent, layer), lk_recurrent_layer_bytes(hp));
    return LK_OK;
}

lk_status lk_recurrent_get(const struct lk_session *s, float *states, lk_err *err) {
    const struct lk_net *net = s->model->net;
    lk_status status = LK_OK;
    if (!s->recurrent) return LK_OK;
    memcpy(states, s->recurrent, lk_recurrent_ram_bytes(net));
    for (int layer = 0; !status && layer < net->hp.n_layer; layer++)
        if (lk_net_recurs_there(net, layer)) status = lk_recurrent_get_layer(s, layer, states, err);
    return status;
}

lk_status lk_recurrent_set(struct lk_session *s, const float *states, lk_err *err) {
    const struct lk_net *net = s->model->net;
    lk_status status = LK_OK;
    if (!s->recurrent) return LK_OK;
    memcpy(s->recurrent, states, lk_recurrent_ram_bytes(net));
    for (int layer = 0; !status && layer < net->hp.n_layer; layer++)
        if (lk_net_recurs_there(net, layer))
            status = lk_recurrent_there_set(
                s, layer, lk_recurrent_state(&net->hp, (float *)states, layer), err);
    return status;
}

lk_status lk_recurrent_copy(struct lk_session *s, const struct lk_session *from, lk_err *err) {
    if (!s->recurrent) return LK_OK;
    memcpy(s->recurrent, from->recurrent, lk_recurrent_ram_bytes(s->model->net));
    return lk_recurrent_there_copy(s, from, err);
}

/* Memory of all states in RAM, if they are not there. */
static float *alloc_states(const struct lk_session *s) {
    bool there = s->recurrent_there.now.buffer;
    if (!there) return s->recurrent;
    return lk_alloc(&s->model->ledger, LK_FOR_SCRATCH, lk_recurrent_bytes(&s->model->net->hp));
}

static void release_states(const struct lk_session *s, float *states) {
    if (states != s->recurrent)
        lk_release(&s->model->ledger, LK_FOR_SCRATCH, states,
                   lk_recurrent_bytes(&s->model->net->hp));
}

lk_status lk_recurrent_save(const struct lk_session *s, struct lk_saving *saving, lk_err *err) {
    float *states = alloc_states(s);
    lk_status status = LK_OK;
    if (!states && s->recurrent)
        return lk_fail(err, LK_E_NOMEM, "out of memory for the states of recurrent layers");
    if (states != s->recurrent) status = lk_recurrent_get(s, states, err);
    if (!status) lk_recurrent_write(s->model, states, saving);
    release_states(s, states);
    return status;
}

lk_status lk_recurrent_load(struct lk_session *s, struct lk_restoring *from, lk_err *err) {
    float *states = alloc_states(s);
    lk_status status = LK_OK;
    if (!states && s->recurrent)
        return lk_fail(err, LK_E_NOMEM, "out of memory for the states of recurrent layers");
    lk_recurrent_restore(s->model->net, states, from);
    if (states != s->recurrent) status = lk_recurrent_set(s, states, err);
    release_states(s, states);
    return status;
}

bool lk_recurrent_check(const struct lk_hparams *hp, const void *states) {
    for (size_t at = 0; at < lk_recurrent_saved_bytes(hp); at += sizeof(float)) {
        float value;
        memcpy(&value, (const char *)states + at, sizeof value);
        if (!isfinite(value)) return false;
    }
    return true;
}

/* ---- drafts: repeating the recurrence of a part of a pass ---- */

/* Passes have at least room for so many tokens, so that few sizes are allocated. */
enum { MIN_TOKENS = 8 };

/* userdata of the nodes of a layer. */
struct lk_repeated_layer {
    struct lk_session *session;
    int layer;
};

static int n_gated(const struct lk_hparams *hp) {
    return hp->recurrence.kind == LK_SHORT_CONV ? 0 : hp->recurrence.n_v_head;
}

static size_t input_floats(const struct lk_hparams *hp, int n_tok) {
    return (size_t)n_tok * (lk_recurrence_channels(&hp->recurrence) + 2 * n_gated(hp));
}

/* Recurrent layers that this process has in RAM, or `min` if they are fewer. */
static size_t n_layers(const struct lk_net *net, int min) {
    int n = n_in_ram(net);
    return (size_t)(n > min ? n : min);
}

static bool is_in_ram(const struct lk_net *net, int layer) {
    const struct lk_hparams *hp = &net->hp;
    return hp->is_recurrent[layer] && hp->index[layer] >= hp->held_recurrent[0] &&
           hp->index[layer] < hp->held_recurrent[0] + n_in_ram(net);
}

static size_t input_bytes(const struct lk_net *net, int n_tok) {
    return n_layers(net, 1) * input_floats(&net->hp, n_tok) * sizeof(float);
}

static int round_up(int n_tok) {
    int n = MIN_TOKENS;
    while (n < n_tok) n *= 2;
    return n < LK_DRAFT_TOKENS ? n : LK_DRAFT_TOKENS;
}

uint64_t lk_recurrent_drafts_bytes(const struct lk_net *net, int n_tok) {
    const struct lk_hparams *hp = &net->hp;
    if (hp->n_recurrent == 0) return 0;
    const size_t per_node = 1024; /* at least what ggml needs, and a node's padding */
    size_t rows =
        2 * (size_t)round_up(n_tok) * lk_recurrence_channels(&hp->recurrence) * sizeof(float);
    return lk_recurrent_ram_bytes(net) + input_bytes(net, round_up(n_tok)) + rows +
           n_layers(net, 1) * (sizeof(struct lk_repeated_layer) + 2 * per_node) + 16 * per_node;
}

/* What a recurrent layer gets from the tokens of a pass. */
struct recurrent_input {
    float *mixed, *decay, *beta; /* the last two are empty if the layers are convolutions */
};

/* The inputs of layer `layer`, which is recurrent. */
static struct recurrent_input input_of(const struct lk_recurrent_drafts *d,
                                       const struct lk_hparams *hp, int layer) {
    size_t n = d->n_cap;
    int at = hp->index[layer] - hp->held_recurrent[0];
    float *mixed = d->input + at * input_floats(hp, d->n_cap),
          *decay = mixed + n * lk_recurrence_channels(&hp->recurrence);
    return (struct recurrent_input){mixed, decay, decay + n * n_gated(hp)};
}

/* ---- the graph: thread ith of nth does its share of a layer ---- */

/* Convolves the kept tokens' projections, and writes those that the next tokens need. */
static void repeat_conv_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct lk_repeated_layer *l = userdata;
    const struct lk_recurrent_drafts *d = &l->session->drafts;
    const struct lk_net *net = l->session->model->net;
    const struct lk_recurrence_shape *shape = &net->hp.recurrence;
    struct lk_recurrence_weights weights = recurrent_weights(net, l->layer);
    const float *from = lk_recurrent_state(&net->hp, d->before, l->layer),
                *x = input_of(d, &net->hp, l->layer).mixed;
    float *to = lk_recurrent_state(&net->hp, l->session->recurrent, l->layer);
    int64_t channels = lk_recurrence_channels(shape);
    int first = (int)(channels * ith / nth), last = (int)(channels * (ith + 1) / nth);
    if (shape->kind != LK_SHORT_CONV) /* nothing else is needed of the output */
        lk_recurrence_conv(shape, &weights, from, x, d->n_keep, first, last, dst->data);
    lk_recurrence_conv_advance(shape, from, to, x, d->n_keep, first, last);
}

/* src: the convolved projections. The outputs go to unused memory: dst is [n_cap][n_v_head]
 * [d_value]. */
static void repeat_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct lk_repeated_layer *l = userdata;
    const struct lk_recurrent_drafts *d = &l->session->drafts;
    const struct lk_model *model = l->session->model;
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_recurrence_weights weights = recurrent_weights(model->net, l->layer);
    struct recurrent_input input = input_of(d, hp, l->layer);
    for (int head = ith; head < hp->recurrence.n_v_head; head += nth)
        lk_recurrence_head(&hp->recurrence, &weights, model->kernels,
                           lk_recurrent_state(hp, d->before, l->layer),
                           lk_recurrent_state(hp, l->session->recurrent, l->layer), head,
                           dst->src[0]->data, input.decay, input.beta, d->n_keep, dst->data);
}

static lk_status build_graph(struct lk_session *s, struct lk_repeated_layer *layer, int n_cap,
                             struct lk_graph *g, lk_err *err) {
    const struct lk_net *net = s->model->net;
    const struct lk_recurrence_shape *shape = &net->hp.recurrence;
    lk_status status = lk_graph_begin(g, 2 * (int)n_layers(net, 0) + 2, &s->ledger, err);
    if (status) return status;
    struct ggml_tensor *after = lk_graph_input(g, 1);
    for (size_t i = 0; i < n_layers(net, 0); i++) {
        struct lk_repeated_layer *l = &layer[i];
        if (shape->kind == LK_SHORT_CONV) {
            after = lk_graph_effect(g->ctx, repeat_conv_node, &after, 1, l);
            continue;
        }
        after = ggml_custom_4d(g->ctx, GGML_TYPE_F32, lk_recurrence_channels(shape), n_cap, 1, 1,
                               &after, 1, repeat_conv_node, GGML_N_TASKS_MAX, l);
        after = ggml_custom_4d(g->ctx, GGML_TYPE_F32, (int64_t)shape->n_v_head * shape->d_value,
                               n_cap, 1, 1, &after, 1, repeat_node, GGML_N_TASKS_MAX, l);
    }
    ggml_build_forward_expand(g->graph, after);
    status = lk_graph_finish(g, &s->ledger, err);
    return status ? status : lk_graph_reserve_work(g, s->model, err);
}

/* ---- memory ---- */

static void free_drafts(struct lk_recurrent_drafts *d, const struct lk_net *net,
                        struct lk_ledger *ledger) {
    lk_graph_free(&d->graph, ledger);
    lk_release(ledger, LK_FOR_SCRATCH, d->before, lk_recurrent_ram_bytes(net));
    lk_release(ledger, LK_FOR_SCRATCH, d->input, input_bytes(net, d->n_cap));
    lk_release(ledger, LK_FOR_SCRATCH, d->layer, n_layers(net, 1) * sizeof *d->layer);
}

void lk_recurrent_drafts_free(struct lk_session *s) {
    free_drafts(&s->drafts, s->model->net, &s->ledger);
    s->drafts = (struct lk_recurrent_drafts){0};
}

/* Copy the last pass, which fits. */
static void copy_pass(const struct lk_recurrent_drafts *from, struct lk_recurrent_drafts *to,
                      const struct lk_net *net) {
    const struct lk_hparams *hp = &net->hp;
    size_t n = from->n_cap * sizeof(float);
    memcpy(to->before, from->before, lk_recurrent_ram_bytes(net));
    for (int layer = 0; layer < hp->n_layer; layer++) {
        if (!is_in_ram(net, layer)) continue;
        struct recurrent_input x = input_of(from, hp, layer), y = input_of(to, hp, layer);
        memcpy(y.mixed, x.mixed, n * lk_recurrence_channels(&hp->recurrence));
        memcpy(y.decay, x.decay, n * n_gated(hp));
        memcpy(y.beta, x.beta, n * n_gated(hp));
    }
}

lk_status lk_recurrent_drafts_reserve(struct lk_session *s, int n_tok, lk_err *err) {
    const struct lk_net *net = s->model->net;
    const struct lk_hparams *hp = &net->hp;
    struct lk_recurrent_drafts *old = &s->drafts, d = {.n_cap = round_up(n_tok)};
    if (n_tok <= old->n_cap) return lk_recurrent_there_reserve(s, err);
    d.before = lk_alloc(&s->ledger, LK_FOR_SCRATCH, lk_recurrent_ram_bytes(net));
    d.input = lk_alloc(&s->ledger, LK_FOR_SCRATCH, input_bytes(net, d.n_cap));
    d.layer = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n_layers(net, 1) * sizeof *d.layer);
    lk_status status =
        d.before && d.input && d.layer
            ? LK_OK
            : lk_fail(err, LK_E_NOMEM, "out of memory for drafts of %d tokens", n_tok);
    for (int layer = 0; !status && layer < hp->n_layer; layer++)
        if (is_in_ram(net, layer))
            d.layer[hp->index[layer] - hp->held_recurrent[0]] =
                (struct lk_repeated_layer){s, layer};
    if (!status) status = build_graph(s, d.layer, d.n_cap, &d.graph, err);
    if (status) {
        free_drafts(&d, net, &s->ledger);
        return status;
    }
    if (old->before) copy_pass(old, &d, net);
    free_drafts(old, net, &s->ledger);
    *old = d;
    return lk_recurrent_there_reserve(s, err);
}

/* ---- a pass ---- */

void lk_recurrent_drafts_begin(struct lk_session *s) {
    float *states = s->recurrent;
    s->recurrent = s->drafts.before;
    s->drafts.before = states;
}

lk_status lk_recurrent_drafts_repeat(struct lk_session *s, int n_tok, lk_err *err) {
    s->drafts.n_keep = n_tok;
    lk_status status = lk_graph_run(&s->drafts.graph, s->model, err);
    return status ? status : lk_recurrent_there_repeat(s, n_tok, err);
}

/* ---- custom nodes that update the states of recurrent layers ---- */

/* The states that a sequence goes on from. */
static float *states_before(const struct lk_seq *seq) {
    return seq->drafts ? seq->session->drafts.before : seq->session->recurrent;
}

/* Thread ith's share of copying n floats. */
static void copy_share(float *to, const float *from, size_t n, int ith, int nth) {
    size_t first = n * (size_t)ith / (size_t)nth, last = n * (size_t)(ith + 1) / (size_t)nth;
    memcpy(to + first, from + first, (last - first) * sizeof *to);
}

/* src: projections [n_row][channels]. Convolves the channels of each sequence. */
static void convolve_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    const struct lk_net *net = job->pass->model->net;
    struct lk_recurrence_weights weights = recurrent_weights(job->pass->model->net, job->layer);
    int channels = lk_recurrence_channels(&net->hp.recurrence);
    int first = (int)((int64_t)channels * ith / nth),
        last = (int)((int64_t)channels * (ith + 1) / nth);
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        const struct lk_seq *seq = &job->pass->seq[i];
        size_t at = (size_t)seq->row * channels;
        const float *x = (const float *)dst->src[0]->data + at,
                    *from = lk_recurrent_state(&net->hp, states_before(seq), job->layer);
        float *to = lk_recurrent_state(&net->hp, seq->session->recurrent, job->layer);
        lk_recurrence_conv(&net->hp.recurrence, &weights, from, x, seq->n_tok, first, last,
                           (float *)dst->data + at);
        lk_recurrence_conv_advance(&net->hp.recurrence, from, to, x, seq->n_tok, first, last);
        if (seq->drafts)
            copy_share(input_of(&seq->session->drafts, &net->hp, job->layer).mixed, x,
                       (size_t)seq->n_tok * channels, ith, nth);
    }
}

/* src: the convolved projections, decay and beta [n_row][n_v_head]. */
static void recurrence_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    const struct lk_hparams *hp = &job->pass->model->net->hp;
    struct lk_recurrence_weights weights = recurrent_weights(job->pass->model->net, job->layer);
    int n_head = hp->recurrence.n_v_head, channels = lk_recurrence_channels(&hp->recurrence);
    for (size_t task = (size_t)ith; task < job->pass->n_seq * n_head; task += (size_t)nth) {
        const struct lk_seq *seq = &job->pass->seq[task / n_head];
        size_t row = (size_t)seq->row;
        const float *decay = (const float *)dst->src[1]->data + row * n_head,
                    *beta = (const float *)dst->src[2]->data + row * n_head;
        lk_recurrence_head(&hp->recurrence, &weights, job->pass->model->kernels,
                           lk_recurrent_state(hp, states_before(seq), job->layer),
                           lk_recurrent_state(hp, seq->session->recurrent, job->layer),
                           (int)(task % n_head), (const float *)dst->src[0]->data + row * channels,
                           decay, beta, seq->n_tok,
                           (float *)dst->data + row * n_head * hp->recurrence.d_value);
        if (!seq->drafts || task % n_head != 0) continue;
        struct recurrent_input input = input_of(&seq->session->drafts, hp, job->layer);
        memcpy(input.decay, decay, (size_t)seq->n_tok * n_head * sizeof *decay);
        memcpy(input.beta, beta, (size_t)seq->n_tok * n_head * sizeof *beta);
    }
}

struct ggml_tensor *lk_recurrence_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                        const struct lk_qkv *pre) {
    const struct lk_recurrence_shape *shape = &job->pass->model->net->hp.recurrence;
    int64_t n_tok = pre->mixed->ne[1];
    struct ggml_tensor *mixed = pre->mixed;
    struct ggml_tensor *args[] = {ggml_custom_4d(ctx, GGML_TYPE_F32, mixed->ne[0], n_tok, 1, 1,
                                                 &mixed, 1, convolve_node, GGML_N_TASKS_MAX, job),
                                  pre->decay, pre->beta};
    if (shape->kind == LK_SHORT_CONV) return args[0];
    return ggml_custom_4d(ctx, GGML_TYPE_F32, (int64_t)shape->n_v_head * shape->d_value, n_tok, 1,
                          1, args, 3, recurrence_node, GGML_N_TASKS_MAX, job);
}
