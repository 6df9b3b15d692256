/* The exact rows of a layer, and the graph of a chunk of tokens in it. */
#include "engine/prefill_layer.h"

#include "engine/device_rows.h"
#include "engine/pass.h"
#include "engine/recurrent.h"

#include <string.h>

/* Let the exact rows be those of the current layer, or of the layer whose rows it attends to. */
static void choose_exact(struct lk_prefill *p) {
    const struct lk_hparams *hp = &p->net->hp;
    p->exact = p->exact_kv[hp->n_shared > 0 && hp->is_swa[p->job.layer]];
    if (!p->job.stores || hp->is_recurrent[p->job.layer]) return;
    for (int side = 0; side < 2; side++) {
        struct lk_exact_rows *exact = &p->exact[side];
        const struct lk_kv *kv = &p->s->cache->kv[p->job.index][side];
        size_t head_bytes = lk_codec_head_bytes(&lk_codec_f16, side, kv->d_head, (int)p->n_tok);
        exact->kv = (struct lk_kv){.side = side,
                                   .n_head = kv->n_head,
                                   .d_head = kv->d_head,
                                   .arena = &exact->arena,
                                   .n_level = 1,
                                   .share = kv->share,
                                   .has_all_rows = true}; /* attention is divided, rows are not */
        exact->kv.rule[0] =
            (struct lk_level_rule){.codec = lk_codec_f16, .block_rows = (int)p->n_tok};
        exact->block = lk_arena_wrap(&exact->arena, &exact->slab, exact->rows);
        exact->kv.level[0] = (struct lk_level){.block = &exact->block,
                                               .n_block = 1,
                                               .head_bytes = head_bytes,
                                               .block_bytes = head_bytes * kv->n_head,
                                               .n_part = kv->n_head,
                                               .d_part = kv->d_head,
                                               .n_head = 1};
    }
}

/* src: k, v and q of the chunk (struct lk_qkv). Writes the K and V rows after the exact rows of
 * earlier chunks; the row counts already include them. Shows the first chunk's queries to the
 * caches. */
static void store_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_prefill *p = userdata;
    int n_head = p->job.heads.n_kv, n = (int)dst->src[0]->ne[2];
    for (int i = ith; i < 2 * n_head; i += nth) {
        int side = i / n_head, head = i % n_head;
        const struct lk_kv *kv = &p->exact[side].kv;
        int d = kv->level[0].d_part;
        struct lk_part part = {&lk_codec_f16, side, d, kv->rule[0].block_rows, NULL};
        p->s->model->kernels->encode(
            &part, (char *)p->exact[side].rows + head * kv->level[0].head_bytes, (int)kv->n_tok - n,
            n, (const float *)dst->src[side]->data + (size_t)head * d, (size_t)n_head * d);
    }
    if (ith != nth - 1 || p->exact[LK_K].kv.n_tok > LK_PREFILL_CHUNK) return;
    for (size_t i = 0; i < p->n_session; i++)
        lk_cache_observe(p->session[i]->cache, p->job.index, dst->src[2]->data, n,
                         p->net->hp.n_head);
}

/* Selects the rows that a layer with an eviction policy keeps. */
static void select_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct lk_prefill *p = userdata;
    const struct lk_kv *const exact[] = {&p->exact[LK_K].kv, &p->exact[LK_V].kv};
    const struct lk_evict *evict = p->s->cache->kv[p->job.index][LK_K].evict;
    for (int head = ith; head < p->job.heads.n_kv; head += nth)
        lk_evict_select(p->s->cache, p->job.index, head,
                        evict->needs_scores ? p->attn_scores : NULL, exact,
                        p->order + (size_t)head * p->n_tok);
}

/* Encodes the layer's exact rows, which are complete, into the caches, and into those of the
 * planned checkpoints. */
static void encode_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct lk_prefill *p = userdata;
    const struct lk_checkpoints *c = &p->s->checkpoints;
    int n_head = p->job.heads.n_kv, layer = p->job.index;
    for (int i = ith; i < 2 * n_head; i += nth) {
        const struct lk_kv *exact = &p->exact[i / n_head].kv;
        for (size_t k = 0; k < p->n_session; k++)
            lk_cache_encode_prompt(p->session[k]->cache, layer, i / n_head, i % n_head, exact);
        for (int k = 0; k < c->n_planned; k++)
            lk_cache_encode_part(c->planned[k].cache, p->s->cache, layer, i / n_head, i % n_head,
                                 (struct lk_rows_there){0}, exact);
    }
}

/* The chunk's attention. After the last chunk, the layer's rows go to the caches. */
static struct ggml_tensor *chunk_attention(struct lk_prefill *p, const struct lk_qkv *pre,
                                           bool last_chunk) {
    if (!p->job.stores) return lk_attention_nodes(p->graph.ctx, &p->job, pre, pre->q);
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *stored = lk_graph_effect(p->graph.ctx, store_node, rows, 3, p);
    ggml_build_forward_expand(p->graph.graph, stored);
    bool selects = p->s->cache->kv[p->job.index][LK_K].evict;
    struct ggml_tensor *ready = stored, *attn = NULL;
    if (last_chunk && selects) { /* the policy uses the attention of the whole prompt */
        attn = lk_attention_nodes(p->graph.ctx, &p->job, pre, stored);
        ready = lk_graph_effect(p->graph.ctx, select_node, &attn, 1, p);
    }
    if (last_chunk)
        ggml_build_forward_expand(p->graph.graph,
                                  lk_graph_effect(p->graph.ctx, encode_node, &ready, 1, p));
    return attn ? attn : lk_attention_nodes(p->graph.ctx, &p->job, pre, stored);
}

/* Tokens [at, at + n) through `layer`: x_in -> x_out, or -> the last token's logits after the last
 * layer. Earlier chunks of the last layer then compute only K and V, if no layer that predicts
 * further tokens follows. */
static lk_status build_chunk(struct lk_prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    bool last_layer = layer == hp->n_layer - 1, last_chunk = at + n == p->n_tok;
    lk_graph_set_device(g, p->s->model, 1);
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, n);
    g->pos = lk_graph_input(g, n);
    ggml_set_input(g->x_in);
    if (p->net->family->token_input) g->tok = lk_graph_input(g, n);
    struct lk_qkv pre = lk_pre_nodes(g, p->net, layer, g->x_in, g->pos);
    lk_pre_to_cpu(g, p->net, layer, g->tok, &pre);
    struct ggml_tensor *attn = hp->is_recurrent[layer] ? lk_recurrence_nodes(g->ctx, &p->job, &pre)
                                                       : chunk_attention(p, &pre, last_chunk);
    if (hp->is_recurrent[layer]) ggml_build_forward_expand(g->graph, attn); /* for its effect */
    bool goes_on = !last_layer || p->embedding; /* x of all tokens is needed */
    if (!goes_on && !last_chunk) return lk_graph_finish(g, &p->s->ledger, err);
    struct ggml_tensor *x = lk_post_nodes(g, p->net, layer, &pre, attn), *logits = NULL;
    if (last_layer && p->embedding) x = p->net->family->norm(p->net, g->ctx, x);
    if (goes_on) ggml_build_forward_expand(g->graph, x);
    if (last_layer && last_chunk && !p->embedding) {
        struct ggml_tensor *row =
            ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n - 1) * x->nb[1]);
        logits = p->net->family->head(p->net, g->ctx, ggml_cont(g->ctx, row));
        ggml_build_forward_expand(g->graph, logits);
    }
    lk_graph_enter(g, LK_ON_CPU);
    g->x_out = goes_on ? lk_graph_use(g, x) : NULL;
    g->logits = lk_graph_use(g, logits);
    if (g->x_out) ggml_set_output(g->x_out);
    if (g->logits) ggml_set_output(g->logits);
    return lk_graph_finish(g, &p->s->ledger, err);
}

/* Set up the pass for one sequence: the n newest of n_tok exact rows of `layer`. */
static void set_sequence(struct lk_prefill *p, int layer, size_t n_tok, int n) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_pass *pass = &p->s->pass;
    lk_pass_reset(pass, 1, NULL); /* there is room */
    struct lk_seq *seq = lk_pass_add(pass, p->s, n, 0);
    seq->absorb = NULL; /* the prompt attends to itself exactly */
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &p->exact[side].kv;
        kv->n_tok = kv->count[0].rows = (int64_t)n_tok;
        kv->n_swa = hp->n_swa > 0 && hp->is_swa[layer] ? hp->n_swa : 0;
        seq->source[side] = kv;
    }
    struct lk_attn attn = lk_pass_attn(&p->job);
    attn.n_tok = n;
    seq->n_range = lk_attn_ranges(&attn, seq->source[LK_K], seq->source[LK_V]);
    seq->attn_scores = p->attn_scores;
}

lk_status lk_prefill_prepare_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err) {
    if (!lk_net_has(p->net, layer)) return LK_OK;
    lk_status status = build_chunk(p, layer, at, n, err);
    return status ? status : lk_graph_reserve_work(&p->graph, p->s->model, err);
}

lk_status lk_prefill_compute_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    if (!lk_net_has(p->net, layer)) return LK_OK;
    lk_graph_set(g->x_in, 0, p->x + at * hp->n_embd, n * hp->n_embd * sizeof(float));
    if (g->tok) lk_graph_set(g->tok, 0, p->tok + at, n * sizeof *p->tok);
    lk_graph_set_positions(g, 0, at, n);
    set_sequence(p, layer, at + n, (int)n);
    lk_status status = lk_graph_run(g, p->s->model, err);
    if (status) lk_abort(p->s->model, err->msg); /* others wait for partial attention */
    if (!status && p->s->pass.seq[0].failed == LK_E_IO) status = lk_fail_lost(err);
    if (!status && g->x_out)
        lk_graph_get(g->x_out, 0, p->x + at * hp->n_embd, n * hp->n_embd * sizeof(float));
    return status;
}

/* Memory of the layer's rows in all sessions, then in the planned checkpoints. */
static lk_status alloc_rows(struct lk_prefill *p, lk_err *err) {
    struct lk_checkpoints *c = &p->s->checkpoints;
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < p->n_session; i++)
        status = lk_cache_alloc_prompt(p->session[i]->cache, p->job.index, (int64_t)p->n_tok, err);
    status = lk_agree(p->s->model, status, err);
    for (int i = c->n_planned - 1; !status && i >= 0; i--) {
        bool ok = lk_cache_alloc_part(c->planned[i].cache, p->s->cache, p->job.index,
                                      (int64_t)c->planned[i].n_tok);
        if (!lk_agree_all(p->s->model, ok)) lk_checkpoints_drop_planned(p->s, i);
    }
    return status;
}

lk_status lk_prefill_prepare_layer(struct lk_prefill *p, int layer, lk_err *err) {
    p->job = lk_pass_job(&p->s->pass, layer);
    choose_exact(p);
    if (!p->job.stores) return LK_OK;
    if (p->attn_scores) memset(p->attn_scores, 0, p->scratch.attn_scores);
    return p->net->hp.is_recurrent[layer] ? LK_OK : alloc_rows(p, err);
}

void lk_prefill_choose_layers(struct lk_prefill *p) {
    for (int layer = 0; layer < p->layer; layer++) {
        p->job = lk_pass_job(&p->s->pass, layer);
        choose_exact(p);
    }
}
