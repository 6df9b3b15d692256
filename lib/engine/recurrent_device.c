/* Memory and nodes of recurrent layers on the model's device. */
#include "engine/recurrent_device.h"

#include "base/cxx_call.h"
#include "engine/pass.h"
#include "engine/session_state.h"
#include "model/recurrence_nodes.h"

#include <string.h>

enum { MARGIN = 512 /* bytes: each tensor is aligned */ };

/* The layer's place among those there. */
static size_t place_of(const struct lk_net *net, int layer) {
    return (size_t)(net->hp.index[layer] - net->hp.n_recurrent + lk_recurrence_count_there(net));
}

/* ---- memory ---- */

/* Inputs of a layer, for LK_DRAFT_TOKENS tokens:
 * | projections [n][channels] | gates [n][n_v_head], as many as the kind of layers needs | */
static int gate_count(const struct lk_recurrence_shape *s) {
    return s->kind == LK_SHORT_CONV ? 0 : s->kind == LK_STATE_SPACE ? 1 : 2;
}

static size_t input_floats(const struct lk_recurrence_shape *s) {
    size_t row = (size_t)lk_recurrence_channels(s) + (size_t)gate_count(s) * s->n_v_head;
    return LK_DRAFT_TOKENS * row;
}

uint64_t lk_recurrent_there_bytes(const struct lk_net *net) {
    uint64_t n = (uint64_t)lk_recurrence_count_there(net);
    return n ? n * lk_recurrence_state_floats(&net->hp.recurrence) * sizeof(float) + MARGIN : 0;
}

/* An allocation, in calls of ggml that may throw. */
struct allocation {
    struct lk_recurrent_memory *memory;
    ggml_backend_buffer_type_t buft;
    int64_t n[2], n_layer[2]; /* shapes of the tensors */
    enum ggml_type type[2];
};

static void create(void *arg) {
    struct allocation *a = arg;
    struct lk_recurrent_memory *m = a->memory;
    m->ctx = ggml_init((struct ggml_init_params){
        .mem_size = 2 * ggml_tensor_overhead(), .mem_buffer = m->headers, .no_alloc = true});
    for (int i = 0; i < 2; i++)
        m->t[i] = ggml_new_tensor_2d(m->ctx, a->type[i], a->n[i], a->n_layer[i]);
    m->size = ggml_backend_alloc_ctx_tensors_from_buft_size(m->ctx, a->buft);
}

static void allocate(void *arg) {
    struct allocation *a = arg;
    a->memory->buffer = ggml_backend_alloc_ctx_tensors_from_buft(a->memory->ctx, a->buft);
    if (a->memory->buffer) ggml_backend_buffer_clear(a->memory->buffer, 0);
}

/* May throw. */
static void free_buffer(void *arg) { ggml_backend_buffer_free(arg); }

static void free_memory(struct lk_session *s, struct lk_recurrent_memory *m,
                        enum lk_purpose purpose) {
    if (m->buffer) {
        lk_cxx_call(free_buffer, m->buffer, NULL);
        lk_ledger_remove(&s->rows.ledger, purpose, m->size);
    }
    if (m->ctx) ggml_free(m->ctx);
    lk_release(&s->ledger, LK_FOR_OTHER, m->headers, 2 * ggml_tensor_overhead());
    *m = (struct lk_recurrent_memory){0};
}

static lk_status fail_call(const struct lk_session *s, lk_status status, const lk_err *why,
                           lk_err *err) {
    if (status == LK_E_NOMEM) return lk_fail(err, status, "%s", why->msg);
    return lk_fail(err, LK_E_IO, "the device %s failed: %.200s", s->model->net->device->name,
                   why->msg);
}

/* Allocate what `a` describes, whose memory is freed after a failure. */
static lk_status alloc_memory(struct lk_session *s, struct allocation *a, enum lk_purpose purpose,
                              lk_err *err) {
    struct lk_recurrent_memory *m = a->memory;
    struct lk_ledger *there = &s->rows.ledger;
    const struct lk_ggml_device *device = s->model->net->device;
    lk_err why = {0};
    lk_status status = LK_OK;
    bool counted = false;
    a->buft = device->buft;
    m->headers = lk_alloc(&s->ledger, LK_FOR_OTHER, 2 * ggml_tensor_overhead());
    if (m->headers) status = lk_cxx_call(create, a, &why);
    if (m->headers && !status) counted = lk_ledger_add(there, purpose, m->size);
    if (counted) status = lk_cxx_call(allocate, a, &why);
    if (m->buffer && !status) {
        m->number = atomic_fetch_add(&s->model->n_memory, 1) + 1;
        return LK_OK;
    }
    size_t size = m->size;
    if (counted && !m->buffer) lk_ledger_remove(there, purpose, size);
    free_memory(s, m, purpose);
    if (status) return fail_call(s, status, &why, err);
    return lk_fail(err, LK_E_NOMEM,
                   "out of memory of %s for the states of recurrent layers (%.1f MiB)",
                   device->name, (double)size / (1 << 20));
}

lk_status lk_recurrent_there_new(struct lk_session *s, lk_err *err) {
    const struct lk_net *net = s->model->net;
    struct lk_recurrent_device *r = &s->recurrent_there;
    int64_t n = lk_recurrence_count_there(net),
            n_float = (int64_t)lk_recurrence_state_floats(&net->hp.recurrence);
    if (n == 0) return LK_OK;
    r->staging = lk_alloc(&s->ledger, LK_FOR_SCRATCH, (size_t)n_float * sizeof *r->staging);
    if (!r->staging)
        return lk_fail(err, LK_E_NOMEM, "out of memory for the states of recurrent layers");
    struct allocation a = {.memory = &r->now,
                           .n = {n_float, 1},
                           .n_layer = {n, 1},
                           .type = {GGML_TYPE_F32, GGML_TYPE_I32}};
    return alloc_memory(s, &a, LK_FOR_CACHE, err);
}

lk_status lk_recurrent_there_reserve(struct lk_session *s, lk_err *err) {
    const struct lk_recurrence_shape *shape = &s->model->net->hp.recurrence;
    struct lk_recurrent_device *r = &s->recurrent_there;
    int64_t n = lk_recurrence_count_there(s->model->net);
    if (n == 0 || r->before.buffer) return LK_OK;
    struct allocation a = {
        .memory = &r->before,
        .n = {(int64_t)lk_recurrence_state_floats(shape), (int64_t)input_floats(shape)},
        .n_layer = {n, n},
        .type = {GGML_TYPE_F32, GGML_TYPE_F32}};
    return alloc_memory(s, &a, LK_FOR_SCRATCH, err);
}

void lk_recurrent_there_free(struct lk_session *s) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    size_t n = lk_recurrence_state_floats(&s->model->net->hp.recurrence) * sizeof *r->staging;
    lk_graph_free(&r->graph, &s->ledger);
    free_memory(s, &r->before, LK_FOR_SCRATCH);
    free_memory(s, &r->now, LK_FOR_CACHE);
    lk_release(&s->ledger, LK_FOR_SCRATCH, r->staging, n);
    r->staging = NULL;
}

/* ---- between there and RAM ---- */

/* A copy, in calls that may throw: of a layer's state, or of all. */
struct copy {
    struct ggml_tensor *t, *from;
    float *data;
    size_t at, size;
};

static void clear(void *arg) { ggml_backend_buffer_clear(((struct copy *)arg)->t->buffer, 0); }
static void get(void *arg) {
    struct copy *c = arg;
    ggml_backend_tensor_get(c->t, c->data, c->at, c->size);
}
static void set(void *arg) {
    struct copy *c = arg;
    ggml_backend_tensor_set(c->t, c->data, c->at, c->size);
}
static void copy(void *arg) {
    struct copy *c = arg;
    ggml_backend_tensor_copy(c->from, c->t);
}

static lk_status call(const struct lk_session *s, void (*fn)(void *), struct copy c, lk_err *err) {
    lk_err why = {0};
    lk_status status = lk_cxx_call(fn, &c, &why);
    return status ? fail_call(s, status, &why, err) : LK_OK;
}

/* The copy of a layer's state to or from the staging. */
static struct copy layer_copy(const struct lk_session *s, int layer) {
    struct ggml_tensor *t = s->recurrent_there.now.t[0];
    return (struct copy){.t = t,
                         .data = s->recurrent_there.staging,
                         .at = place_of(s->model->net, layer) * t->nb[1],
                         .size = t->nb[1]};
}

lk_status lk_recurrent_there_prepare(struct lk_session *s, lk_err *err) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    if (!r->is_old) return LK_OK;
    lk_status status = call(s, clear, (struct copy){.t = r->now.t[0]}, err);
    if (!status) r->is_old = false;
    return status;
}

lk_status lk_recurrent_there_get(const struct lk_session *s, int layer, float *state, lk_err *err) {
    const struct lk_recurrent_device *r = &s->recurrent_there;
    struct copy c = layer_copy(s, layer);
    lk_status status = LK_OK;
    memset(r->staging, 0, c.size);
    if (!r->is_old) status = call(s, get, c, err);
    lk_recurrence_from_there(&s->model->net->hp.recurrence, r->staging, state);
    return status;
}

lk_status lk_recurrent_there_set(struct lk_session *s, int layer, const float *state, lk_err *err) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    lk_recurrence_to_there(&s->model->net->hp.recurrence, state, r->staging);
    r->is_old = false; /* the layers are set together */
    return call(s, set, layer_copy(s, layer), err);
}

lk_status lk_recurrent_there_copy(struct lk_session *s, const struct lk_session *from,
                                  lk_err *err) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    const struct lk_recurrent_device *other = &from->recurrent_there;
    if (!r->now.buffer) return LK_OK;
    r->is_old = other->is_old;
    if (r->is_old) return LK_OK;
    return call(s, copy, (struct copy){.t = r->now.t[0], .from = other->now.t[0]}, err);
}

/* ---- nodes ---- */

uint64_t lk_recurrent_there_number(const struct lk_session *s, bool drafts) {
    const struct lk_recurrent_device *r = &s->recurrent_there;
    return drafts ? r->before.number : r->now.number;
}

/* Rows [row, row + n) of x. */
static struct ggml_tensor *rows_of(struct ggml_context *ctx, struct ggml_tensor *x, int row,
                                   int n) {
    if (!x || x->ne[1] == n) return x;
    return ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], (size_t)row * x->nb[1]);
}

/* The kept inputs of the first n tokens of the last pass of drafts in a layer. */
static struct lk_recurrence_input kept_input(struct lk_session *s, struct ggml_context *ctx,
                                             int layer, int n) {
    const struct lk_net *net = s->model->net;
    const struct lk_recurrence_shape *shape = &net->hp.recurrence;
    struct ggml_tensor *t = s->recurrent_there.before.t[1];
    size_t at = place_of(net, layer) * t->nb[1],
           row = (size_t)lk_recurrence_channels(shape) * sizeof(float);
    struct lk_recurrence_input in = {
        .mixed = ggml_view_2d(ctx, t, lk_recurrence_channels(shape), n, row, at)};
    at += LK_DRAFT_TOKENS * row;
    row = (size_t)shape->n_v_head * sizeof(float);
    for (int i = 0; i < gate_count(shape); i++)
        in.gate[i] = ggml_view_2d(ctx, t, shape->n_v_head, n, row, at + i * LK_DRAFT_TOKENS * row);
    return in;
}

static void add_copy(struct lk_graph *g, struct ggml_tensor *from, struct ggml_tensor *to) {
    if (from) ggml_build_forward_expand(g->graph, ggml_cpy(g->ctx, from, to));
}

/* Keep a layer's state before a pass of drafts, and the inputs. */
static void keep(struct lk_graph *g, struct lk_session *s, int layer,
                 const struct lk_recurrence_input *in) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    struct ggml_tensor *from = r->now.t[0], *to = r->before.t[0];
    size_t at = place_of(s->model->net, layer) * from->nb[1];
    struct lk_recurrence_input kept = kept_input(s, g->ctx, layer, (int)in->mixed->ne[1]);
    add_copy(g, ggml_view_1d(g->ctx, from, from->ne[0], at),
             ggml_view_1d(g->ctx, to, to->ne[0], at));
    add_copy(g, in->mixed, kept.mixed);
    for (int i = 0; i < 2; i++) add_copy(g, in->gate[i], kept.gate[i]);
}

struct ggml_tensor *lk_recurrent_there_nodes(struct lk_graph *g, struct lk_session *s, int layer,
                                             const struct lk_qkv *pre, int row, int n_tok,
                                             bool drafts) {
    const struct lk_net *net = s->model->net;
    const struct lk_recurrence_shape *shape = &net->hp.recurrence;
    struct lk_recurrent_memory *now = &s->recurrent_there.now;
    size_t at = place_of(net, layer) * now->t[0]->nb[1];
    struct lk_recurrence_input in = lk_recurrence_input_of(shape, pre);
    in.mixed = rows_of(g->ctx, in.mixed, row, n_tok);
    for (int i = 0; i < 2; i++) in.gate[i] = rows_of(g->ctx, in.gate[i], row, n_tok);
    if (drafts) keep(g, s, layer, &in);
    struct lk_recurrence_states states = {now->t[0], now->t[0], now->t[1], at, at};
    return lk_recurrence_there(shape, &net->layer[layer], g->ctx, g->graph, &in, &states);
}

struct ggml_tensor *lk_recurrence_there_pass(struct lk_graph *g, struct lk_layer_job *job,
                                             const struct lk_qkv *pre) {
    struct ggml_tensor *all = NULL;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        const struct lk_seq *seq = &job->pass->seq[i];
        struct ggml_tensor *out = lk_recurrent_there_nodes(g, seq->session, job->layer, pre,
                                                           seq->row, seq->n_tok, seq->drafts);
        all = all ? ggml_concat(g->ctx, all, out, 1) : out;
    }
    return all;
}

/* ---- drafts ---- */

/* The recurrence of all layers for n_tok tokens of the last pass. */
static lk_status build_repeat(struct lk_session *s, int n_tok, lk_err *err) {
    const struct lk_net *net = s->model->net;
    struct lk_recurrent_device *r = &s->recurrent_there;
    struct lk_graph *g = &r->graph;
    int n_node = lk_recurrence_count_there(net) * LK_RECURRENCE_NODES;
    lk_graph_set_device(g, s->model, 1);
    g->piece_node = n_node;
    lk_status status = lk_graph_begin(g, n_node, &s->ledger, err);
    if (status) return status;
    lk_graph_enter(g, LK_ON_DEVICE);
    for (int layer = 0; layer < net->hp.n_layer; layer++) {
        if (!lk_net_recurs_there(net, layer)) continue;
        struct lk_recurrence_input in = kept_input(s, g->ctx, layer, n_tok);
        size_t at = place_of(net, layer) * r->now.t[0]->nb[1];
        struct lk_recurrence_states states = {r->before.t[0], r->now.t[0], r->now.t[1], at, at};
        lk_recurrence_there(&net->hp.recurrence, &net->layer[layer], g->ctx, g->graph, &in,
                            &states);
    }
    status = lk_graph_finish(g, &s->ledger, err);
    if (!status) r->n_repeat = n_tok;
    return status;
}

lk_status lk_recurrent_there_repeat(struct lk_session *s, int n_tok, lk_err *err) {
    struct lk_recurrent_device *r = &s->recurrent_there;
    lk_status status = LK_OK;
    if (!r->now.buffer) return LK_OK;
    if (r->n_repeat != n_tok) {
        r->n_repeat = 0;
        status = build_repeat(s, n_tok, err);
    }
    return status ? status : lk_graph_run(&r->graph, s->model, err);
}
