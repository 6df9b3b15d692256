/* One step of some sequences: their rows go through all layers together, K and V into their caches.
 *
 *   embed -> [ pre -> store -> attend -> combine, settle -> post ] x n_layer -> head
 *
 * All but the middle treats rows alike, so those of all sequences stand in one matrix. store, attend, and
 * combine with settle, are three custom nodes of one ggml graph that do their work for each sequence of the
 * pass; ggml's barrier between nodes is the barrier that they need. The graph is built once for a number of
 * rows and used again. */
#include "engine/engine.h"

#include <string.h>

enum { NODES_AROUND = 64 };

/* ---- the sequences of a pass ---- */

lk_status lk_pass_open(struct lk_pass *pass, struct lk_model *model, struct lk_ledger *ledger,
                       lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    *pass = (struct lk_pass){.model = model, .ledger = ledger};
    pass->attn = (struct lk_attn){.kernels = model->kernels,
                                  .n_head = hp->n_head,
                                  .n_head_kv = hp->n_head_kv,
                                  .d_head = hp->d_head,
                                  .n_thread = model->n_thread,
                                  .scale = hp->attn_scale,
                                  .alibi_max_bias = hp->alibi_max_bias,
                                  .rope = model->rope};
    pass->job = lk_alloc(ledger, LK_FOR_OTHER, hp->n_layer * sizeof *pass->job);
    if (!pass->job) return lk_fail(err, LK_E_NOMEM, "no memory for %d layers' work", hp->n_layer);
    for (int layer = 0; layer < hp->n_layer; layer++)
        pass->job[layer] = (struct lk_layer_job){pass, layer};
    return LK_OK;
}

void lk_pass_close(struct lk_pass *pass) {
    if (!pass->ledger) return;
    lk_graph_free(&pass->graph, pass->ledger);
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->attn.scratch, pass->n_scratch * sizeof(float));
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->attn.partial, pass->n_partial * sizeof(float));
    lk_release(pass->ledger, LK_FOR_OTHER, pass->seq, pass->seq_cap * sizeof *pass->seq);
    lk_release(pass->ledger, LK_FOR_OTHER, pass->job,
               pass->model->net->hp.n_layer * sizeof *pass->job);
    *pass = (struct lk_pass){0};
}

lk_status lk_pass_begin(struct lk_pass *pass, size_t n_seq, lk_err *err) {
    pass->n_seq = 0;
    if (n_seq <= pass->seq_cap) return LK_OK;
    if (!lk_grow(pass->ledger, LK_FOR_OTHER, (void **)&pass->seq, pass->seq_cap * sizeof *pass->seq,
                 n_seq * sizeof *pass->seq))
        return lk_fail(err, LK_E_NOMEM, "no memory for a pass of %zu sequences", n_seq);
    pass->seq_cap = n_seq;
    return LK_OK;
}

static size_t partial_floats(const struct lk_pass *pass, const struct lk_seq *seq) {
    const struct lk_attn *a = &pass->attn;
    return lk_attn_partial_floats(a->n_head, a->n_head_kv, a->d_head + seq->session->width.latent,
                                  seq->n_tok, a->n_thread);
}

struct lk_seq *lk_pass_add(struct lk_pass *pass, struct lk_session *session, int n_tok) {
    struct lk_seq *seq = &pass->seq[pass->n_seq];
    *seq = (struct lk_seq){.session = session, .n_tok = n_tok};
    if (pass->n_seq > 0) {
        const struct lk_seq *before = seq - 1;
        seq->row = before->row + before->n_tok;
        seq->partial = before->partial + partial_floats(pass, before);
    }
    pass->n_seq++;
    return seq;
}

/* At least n floats at *mem, which holds *have; what it held is gone. */
static bool want_floats(struct lk_pass *pass, float **mem, size_t *have, size_t n) {
    if (n <= *have) return true;
    lk_release(pass->ledger, LK_FOR_SCRATCH, *mem, *have * sizeof(float));
    *mem = lk_alloc(pass->ledger, LK_FOR_SCRATCH, n * sizeof(float));
    *have = *mem ? n : 0;
    return *mem;
}

lk_status lk_pass_reserve(struct lk_pass *pass, lk_err *err) {
    const struct lk_seq *last = &pass->seq[pass->n_seq - 1];
    int part = 0; /* the widest of all */
    for (size_t i = 0; i < pass->n_seq; i++)
        if (pass->seq[i].session->width.part > part) part = pass->seq[i].session->width.part;
    if (want_floats(pass, &pass->attn.partial, &pass->n_partial,
                    last->partial + partial_floats(pass, last)) &&
        want_floats(pass, &pass->attn.scratch, &pass->n_scratch,
                    lk_attn_scratch_floats(part) * pass->attn.n_thread))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the attention of %d tokens",
                   last->row + last->n_tok);
}

/* ---- the custom nodes ---- */

/* Rows of a sequence in a matrix of all rows, [n_row][width]. */
static float *rows_of(const struct ggml_tensor *t, const struct lk_seq *seq, int width) {
    return (float *)t->data + (size_t)seq->row * width;
}

static const struct lk_kv *stream_of(const struct lk_seq *seq, int layer, enum lk_side side) {
    return seq->read[side] ? seq->read[side] : &seq->session->cache->kv[layer][side];
}

/* A sequence's call of a layer's attention, without queries and output. */
static struct lk_attn call_of(const struct lk_layer_job *job, size_t i) {
    const struct lk_seq *seq = &job->pass->seq[i];
    struct lk_attn attn = job->pass->attn;
    attn.k = stream_of(seq, job->layer, LK_K);
    attn.v = stream_of(seq, job->layer, LK_V);
    attn.n_tok = seq->n_tok;
    attn.turn = (int)i;
    attn.partial += seq->partial;
    return attn;
}

const struct lk_evict *lk_seq_evict(const struct lk_seq *seq, int layer) {
    return seq->session->cache->kv[layer][LK_K].evict;
}

/* What a sequence's queries attend to besides rows; NULL where there is nothing, and while a prompt attends
 * to itself exactly. */
static struct lk_absorb *absorb_of(const struct lk_seq *seq) {
    return seq->read[LK_K] ? NULL : seq->session->absorb;
}

/* The sequences' sides are shared out among the threads, so that no stream has two at a time. */
static bool is_mine(size_t i, enum lk_side side, int ith, int nth) {
    return (2 * i + side) % nth == (size_t)ith;
}

/* K and V rows, src[0] and src[1] as [n_row][n_head_kv][d_head], enter their caches' newest levels. The
 * caches take notice of the queries, src[2]. */
static void store(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    const struct lk_attn *a = &job->pass->attn;
    for (size_t i = 0; i < job->pass->n_seq; i++)
        for (int side = 0; side < 2; side++) {
            struct lk_seq *seq = &job->pass->seq[i];
            if (seq->failed || !is_mine(i, side, ith, nth)) continue;
            struct lk_cache *cache = seq->session->cache;
            if (side == LK_K)
                lk_cache_observe(cache, job->layer,
                                 rows_of(dst->src[2], seq, a->n_head * a->d_head), seq->n_tok,
                                 a->n_head);
            lk_status status = lk_cache_append(
                cache, job->layer, side, rows_of(dst->src[side], seq, a->n_head_kv * a->d_head),
                seq->n_tok, NULL);
            if (status != LK_OK) {
                seq->failed = status;
            } else if (side == LK_K) {
                struct lk_attn call = call_of(job, i);
                seq->n_range = lk_attn_ranges(&call, call.k, call.v);
                seq->attn_scores = cache->evict[job->layer].score; /* the rows' own */
            }
        }
}

static void attend(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        if (seq->failed) continue;
        struct lk_attn attn = call_of(job, i);
        attn.q = rows_of(dst->src[0], seq, attn.n_head * attn.d_head);
        const struct lk_watch *watch = &seq->session->watch;
        if (ith == 0 && watch->see) watch->see(watch->user, job->layer, &attn);
        lk_attn_items(&attn, ith, nth);
        if (absorb_of(seq))
            lk_absorb_read(absorb_of(seq), job->layer, attn.q, attn.n_tok, ith, nth);
    }
}

/* What rows got of the attention under way is told to the policies that listen. */
static void listen(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        const struct lk_evict *evict = lk_seq_evict(seq, job->layer);
        if (seq->failed || !evict || !evict->needs_scores) continue;
        struct lk_attn attn = call_of(job, i);
        attn.q = rows_of(dst->src[1], seq, attn.n_head * attn.d_head);
        lk_attn_accumulate_scores(&attn, seq->n_range,
                                  lk_policy_needs(&evict->policy) == LK_SCORES_LAST,
                                  seq->attn_scores, ith, nth);
    }
}

void lk_combine_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        struct lk_attn attn = call_of(job, i);
        attn.out = rows_of(dst, seq, attn.n_head * attn.d_head);
        if (absorb_of(seq)) attn.more = absorb_of(seq)->more;
        if (!seq->failed)
            lk_attn_combine(&attn, seq->n_range, ith, nth);
        else if (ith == 0)
            memset(attn.out, 0, (size_t)seq->n_tok * attn.n_head * attn.d_head * sizeof(float));
    }
}

/* Every query has seen the newest rows exactly: those that are old enough are re-encoded. */
static void combine_and_settle(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    lk_combine_node(dst, ith, nth, userdata);
    for (size_t i = 0; i < job->pass->n_seq; i++)
        for (int side = 0; side < 2; side++) {
            struct lk_seq *seq = &job->pass->seq[i];
            if (seq->failed || !is_mine(i, side, ith, nth)) continue;
            if (side == LK_V && lk_seq_evict(seq, job->layer)) continue; /* settled with K */
            lk_status status = lk_cache_age(seq->session->cache, job->layer, side, NULL);
            if (status != LK_OK) seq->failed = status;
        }
}

/* Does a policy of any sequence listen, in any layer? A graph that serves it serves the others too. */
static bool pass_hears(const struct lk_pass *pass) {
    for (size_t i = 0; i < pass->n_seq; i++)
        for (int layer = 0; layer < pass->model->net->hp.n_layer; layer++) {
            const struct lk_evict *evict = lk_seq_evict(&pass->seq[i], layer);
            if (evict && evict->needs_scores) return true;
        }
    return false;
}

struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                       const struct lk_pre *pre, struct ggml_tensor *ready,
                                       ggml_custom_op_t last) {
    int64_t n_attn = pre->q->ne[0] * pre->q->ne[1], n_tok = pre->q->ne[2];
    struct ggml_tensor *queries[] = {pre->q, ready};
    struct ggml_tensor *items = lk_graph_effect(ctx, attend, queries, 2, job);
    struct ggml_tensor *weighed[] = {items, pre->q};
    if (pass_hears(job->pass)) items = lk_graph_effect(ctx, listen, weighed, 2, job);
    return ggml_custom_4d(ctx, GGML_TYPE_F32, n_attn, n_tok, 1, 1, &items, 1, last,
                          GGML_N_TASKS_MAX, job);
}

static struct ggml_tensor *attention(struct ggml_context *ctx, struct lk_layer_job *job,
                                     const struct lk_pre *pre) {
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *stored = lk_graph_effect(ctx, store, rows, 3, job);
    return lk_attention_nodes(ctx, job, pre, stored, combine_and_settle);
}

/* ---- the graph ---- */

lk_status lk_pass_build(struct lk_pass *pass, int n_row, int n_out, lk_err *err) {
    struct lk_graph *g = &pass->graph;
    bool needs_scores = pass_hears(pass);
    if (g->ctx && g->n_tok == n_row && g->n_out == n_out && g->needs_scores == needs_scores)
        return LK_OK;
    const struct lk_net *net = pass->model->net;
    int n_layer = net->hp.n_layer;
    lk_status status =
        lk_graph_begin(g, n_layer * LK_LAYER_NODES + NODES_AROUND, pass->ledger, err);
    if (status != LK_OK) return status;
    g->tok = lk_graph_input(g, (size_t)n_row);
    g->pos = lk_graph_input(g, (size_t)n_row);
    struct ggml_tensor *x = net->family->embed(net, g->ctx, g->tok, g->pos);
    for (int layer = 0; layer < n_layer; layer++) {
        struct lk_pre pre = net->family->pre(net, g->ctx, layer, x, g->pos);
        struct ggml_tensor *attn = attention(g->ctx, &pass->job[layer], &pre);
        x = net->family->post(net, g->ctx, layer, &pre, attn);
    }
    if (n_out < n_row) {
        g->out = lk_graph_input(g, (size_t)n_out);
        x = ggml_get_rows(g->ctx, x, g->out);
    }
    g->logits = net->family->head(net, g->ctx, x);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(g->graph, g->logits);
    status = lk_graph_finish(g, pass->ledger, err);
    if (status == LK_OK) status = lk_graph_ready(g, pass->model, err);
    if (status != LK_OK) return status;
    g->n_tok = n_row;
    g->n_out = n_out;
    g->needs_scores = needs_scores;
    return LK_OK;
}
