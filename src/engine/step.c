/* One step of a session: n tokens go through all layers, their K and V into the cache.
 *
 *   embed -> [ pre -> store -> attend -> combine, settle -> post ] x n_layer -> head
 *
 * store, attend, and combine with settle, are three custom nodes of one ggml graph; ggml's barrier
 * between nodes is the barrier that they need. The graph is built once for a number of tokens and used
 * again. */
#include "engine/engine.h"

#include <string.h>

enum { NODES_AROUND = 64 };

/* K and V rows, src[0] and src[1] as [n_tok][n_head_kv][d_head], enter the newest level, K by the first
 * thread, V by the last. The cache takes notice of the queries, src[2]. */
static void store(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    struct lk_session *s = job->session;
    for (int side = 0; side < 2; side++) {
        if (s->failed || ith != (side == LK_K ? 0 : nth - 1)) continue;
        if (side == LK_K) lk_cache_observe(s->cache, job->layer, dst->src[2]->data, s->attn.n_tok, s->attn.n_head);
        lk_status status = lk_cache_append(s->cache, job->layer, side, dst->src[side]->data, s->attn.n_tok, NULL);
        if (status != LK_OK) s->failed = status;
        else if (side == LK_K) job->n_range = lk_attn_ranges(&s->attn, job->read[LK_K], job->read[LK_V]);
        if (side == LK_K) job->heard = s->cache->slots[job->layer].score; /* the rows' own */
    }
}

/* This layer's call: `q` [n_tok][n_head][d_head] in, `out` of the same shape. */
static struct lk_attn layer_attn(const struct lk_layer_job *job, const float *q, float *out) {
    struct lk_attn attn = job->session->attn;
    attn.k = job->read[LK_K];
    attn.v = job->read[LK_V];
    attn.q = q;
    attn.out = out;
    return attn;
}

/* What the layer's queries attend to besides rows; NULL where there is nothing, and while a prompt attends to
 * itself exactly. */
static struct lk_absorb *absorb_of(const struct lk_layer_job *job) {
    struct lk_session *s = job->session;
    return job->read[LK_K] == &s->cache->stream[job->layer][LK_K] ? s->absorb : NULL;
}

static void attend(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    if (job->session->failed) return;
    struct lk_attn attn = layer_attn(job, dst->src[0]->data, NULL);
    const struct lk_watch *watch = &job->session->watch;
    if (ith == 0 && watch->see) watch->see(watch->user, job->layer, &attn);
    lk_attn_items(&attn, ith, nth);
    if (absorb_of(job)) lk_absorb_read(absorb_of(job), job->layer, attn.q, attn.n_tok, ith, nth);
}

const struct lk_slots *lk_layer_slots(const struct lk_layer_job *job) {
    return job->session->cache->stream[job->layer][LK_K].slots;
}

/* What rows got of the attention under way is told to the policy. */
static void listen(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    if (job->session->failed) return;
    struct lk_attn attn = layer_attn(job, dst->src[1]->data, NULL);
    bool last = lk_policy_hears(&lk_layer_slots(job)->policy) == LK_HEARS_LAST;
    lk_attn_listen(&attn, job->n_range, last, job->heard, ith, nth);
}

void lk_combine_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    if (job->session->failed) {
        if (ith == 0) memset(dst->data, 0, ggml_nbytes(dst));
        return;
    }
    struct lk_attn attn = layer_attn(job, NULL, dst->data);
    if (absorb_of(job)) attn.more = absorb_of(job)->more;
    lk_attn_combine(&attn, job->n_range, ith, nth);
}

/* Every query has seen the newest rows exactly: those that are old enough are re-encoded. */
static void combine_and_settle(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    struct lk_session *s = job->session;
    lk_combine_node(dst, ith, nth, userdata);
    bool together = lk_layer_slots(job); /* K and V, by one thread */
    for (int side = 0; side < (together ? 1 : 2); side++) {
        if (s->failed || ith != (side == LK_K ? 0 : nth - 1)) continue;
        lk_status status = lk_cache_settle(s->cache, job->layer, side, NULL);
        if (status != LK_OK) s->failed = status;
    }
}

struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job, const struct lk_pre *pre,
                                       struct ggml_tensor *ready, ggml_custom_op_t last) {
    int64_t n_attn = pre->q->ne[0] * pre->q->ne[1], n_tok = pre->q->ne[2];
    struct ggml_tensor *queries[] = {pre->q, ready};
    struct ggml_tensor *items = ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, queries, 2, attend, GGML_N_TASKS_MAX, job);
    const struct lk_slots *slots = lk_layer_slots(job);
    struct ggml_tensor *weighed[] = {items, pre->q};
    if (slots && slots->hears) items = ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, weighed, 2, listen, GGML_N_TASKS_MAX, job);
    return ggml_custom_4d(ctx, GGML_TYPE_F32, n_attn, n_tok, 1, 1, &items, 1, last, GGML_N_TASKS_MAX, job);
}

static struct ggml_tensor *attention(struct ggml_context *ctx, struct lk_layer_job *job, const struct lk_pre *pre) {
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *stored = ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, rows, 3, store, GGML_N_TASKS_MAX, job);
    return lk_attention_nodes(ctx, job, pre, stored, combine_and_settle);
}

/* The graph of n_tok tokens, from the last call where it fits. */
static lk_status build(struct lk_session *s, int n_tok, bool all, lk_err *err) {
    struct lk_graph *g = &s->step;
    if (g->ctx && g->n_tok == n_tok && g->all == all) return LK_OK;
    const struct lk_net *net = s->model->net;
    int n_layer = net->hp.n_layer;
    lk_status status = lk_graph_begin(g, n_layer * LK_LAYER_NODES + NODES_AROUND, &s->ledger, err);
    if (status != LK_OK) return status;
    g->tok = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n_tok);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n_tok);
    ggml_set_input(g->tok);
    ggml_set_input(g->pos);
    struct ggml_tensor *x = net->family->embed(net, g->ctx, g->tok, g->pos);
    for (int layer = 0; layer < n_layer; layer++) {
        struct lk_pre pre = net->family->pre(net, g->ctx, layer, x, g->pos);
        struct ggml_tensor *attn = attention(g->ctx, &s->job[layer], &pre);
        x = net->family->post(net, g->ctx, layer, &pre, attn);
    }
    if (!all && n_tok > 1) x = ggml_cont(g->ctx, ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n_tok - 1) * x->nb[1]));
    g->logits = net->family->head(net, g->ctx, x);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(g->graph, g->logits);
    status = lk_graph_finish(g, &s->ledger, err);
    if (status != LK_OK) return status;
    g->n_tok = n_tok;
    g->all = all;
    return LK_OK;
}

lk_status lk_step(struct lk_session *s, const int32_t *tok, int n_tok, bool all, lk_err *err) {
    s->n_logits = 0;
    lk_status status = build(s, n_tok, all, err);
    if (status == LK_OK) status = lk_session_want_logits(s, all ? n_tok : 1, err);
    if (status == LK_OK) status = lk_session_want_absorb(s, n_tok, err);
    if (status != LK_OK) return status;
    if (n_tok == 1 && s->cache->reserved > 0) s->cache->reserved--;
    else status = lk_cache_prepare(s->cache, 0, s->cache->shape.n_layer, n_tok, n_tok, err);
    if (status != LK_OK) return status;

    memcpy(s->step.tok->data, tok, n_tok * sizeof *tok);
    lk_graph_set_positions(&s->step, s->n_tok, n_tok);
    s->attn.n_tok = n_tok;
    s->failed = LK_OK;
    status = lk_graph_run(&s->step, s->model, err);
    if (status == LK_OK && s->failed) status = lk_fail(err, s->failed, "no memory for the cache's next block");
    if (status != LK_OK) {
        lk_cache_clear(s->cache); /* layers may stand at different tokens */
        s->n_tok = 0;
        return status;
    }
    s->n_logits = all ? n_tok : 1;
    memcpy(s->logits, s->step.logits->data, ggml_nbytes(s->step.logits));
    memcpy(s->tok + s->n_tok, tok, n_tok * sizeof *tok);
    s->n_tok += n_tok;
    if (s->cache->reserved == 0) lk_cache_trim(s->cache); /* blocks that ageing set free */
    return LK_OK;
}
