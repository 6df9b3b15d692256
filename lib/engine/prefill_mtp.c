/* Exact prefill of the layer that predicts further tokens. */
#include "engine/prefill_mtp.h"

#include "model/mtp.h"

#include <string.h>

/* K and V of tokens [at, at + n). x_in: the last layer's output for the tokens before. */
static lk_status build_mtp_chunk(struct lk_prefill *p, size_t at, size_t n, lk_err *err) {
    const struct lk_net *net = p->net;
    struct lk_graph *g = &p->graph;
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, net->hp.n_embd, n);
    g->tok = lk_graph_input(g, n);
    g->pos = lk_graph_input(g, n);
    ggml_set_input(g->x_in);
    struct ggml_tensor *x =
        lk_mtp_input(net, g->ctx, g->tok, net->family->norm(net, g->ctx, g->x_in));
    struct lk_qkv pre = net->family->pre(net, g->ctx, net->hp.n_layer, x, g->pos);
    struct ggml_tensor *rows[] = {pre.k, pre.v, pre.q};
    struct ggml_tensor *done = lk_graph_effect(g->ctx, lk_prefill_store_node, rows, 3, p);
    bool last_chunk = at + n == p->n_tok, selects = p->s->cache->kv[p->job.index][LK_K].evict;
    if (last_chunk && selects) done = lk_graph_effect(g->ctx, lk_prefill_select_node, &done, 1, p);
    if (last_chunk) done = lk_graph_effect(g->ctx, lk_prefill_encode_node, &done, 1, p);
    ggml_build_forward_expand(g->graph, done);
    return lk_graph_finish(g, &p->s->ledger, err);
}

static lk_status run_mtp_chunk(struct lk_prefill *p, size_t at, size_t n, lk_err *err) {
    size_t n_embd = p->net->hp.n_embd, row = n_embd * sizeof(float);
    lk_status status = build_mtp_chunk(p, at, n, err);
    if (status != LK_OK) return status;
    struct lk_graph *g = &p->graph;
    if (at == 0)
        memset(g->x_in->data, 0, row);
    else
        memcpy(g->x_in->data, p->x + (at - 1) * n_embd, row);
    memcpy((float *)g->x_in->data + n_embd, p->x + at * n_embd, (n - 1) * row);
    memcpy(g->tok->data, p->tok + at, n * sizeof *p->tok);
    lk_graph_set_positions(g, 0, at, n);
    lk_prefill_set_sequence(p, p->net->hp.n_layer, at + n, (int)n);
    return lk_graph_run(g, p->s->model, err);
}

/* Write the hidden state after n_tok tokens to `states`. */
static lk_status keep_hidden(struct lk_prefill *p, size_t n_tok, float *states, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    size_t row = hp->n_embd * sizeof(float);
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, 1);
    ggml_set_input(g->x_in);
    g->x_out = p->net->family->norm(p->net, g->ctx, g->x_in);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, &p->s->ledger, err);
    if (status != LK_OK) return status;
    memcpy(g->x_in->data, p->x + (n_tok - 1) * hp->n_embd, row);
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK) memcpy(lk_recurrent_hidden(hp, states), g->x_out->data, row);
    return status;
}

lk_status lk_prefill_mtp(struct lk_prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    const struct lk_checkpoints *c = &s->checkpoints;
    p->job = lk_pass_job(&s->pass, p->net->hp.n_layer);
    lk_prefill_choose_exact(p);
    if (p->attn_scores) memset(p->attn_scores, 0, p->scratch.attn_scores);
    lk_status status = lk_prefill_alloc_layer(p, err);
    for (size_t at = 0; status == LK_OK && at < p->n_tok; at += LK_PREFILL_CHUNK)
        status = run_mtp_chunk(
            p, at, p->n_tok - at < LK_PREFILL_CHUNK ? p->n_tok - at : LK_PREFILL_CHUNK, err);
    for (int i = 0; status == LK_OK && i < c->n_planned; i++)
        status = keep_hidden(p, c->planned[i].n_tok, c->planned[i].states, err);
    return status == LK_OK ? keep_hidden(p, p->n_tok, s->recurrent, err) : status;
}
