/* Exact prefill, layer by layer.
 *
 * All tokens of the prompt pass one layer before the next one starts, so only one layer's exact K
 * and V exist at a time. If later layers attend to them, those of two layers do: the last one with
 * a window and the last one without. The prompt attends to itself exactly and is compressed
 * afterwards (the "lazy approximation" of TALE). Peak memory: the compressed caches, the exact f16
 * rows of one or two layers, and the hidden states of all tokens.
 *
 * Recipes that are eager go through the cache instead, in chunks (extend.h). */
#include "engine/prefill.h"

#include "engine/extend.h"
#include "engine/factors.h"
#include "model/mtp.h"

#include <math.h>
#include <string.h>

enum { CHUNK = LK_EVAL_MAX, NODES = 2 * LK_LAYER_NODES };

/* Exact K or V rows of a layer: one level with one block, with room for all tokens. */
struct exact_rows {
    struct lk_kv kv;
    void *block; /* [n_head_kv][n_tok][d_head] f16 */
    size_t size; /* bytes of the block, with room for the layers that use it */
};

struct prefill {
    struct lk_session *s;              /* the first session: its pass and ledger are used */
    struct lk_session *const *session; /* [n_session] receive the rows */
    size_t n_session;
    const struct lk_net *net;
    size_t n_tok;
    float *x; /* [n_tok][n_embd] hidden states */
    size_t x_size;
    const int32_t *tok;               /* [n_tok] */
    struct exact_rows exact_kv[2][2]; /* [kind of layer][K, V]; the second kind: with a window, if
                                       * layers share rows */
    struct exact_rows *exact;         /* [2] of the current layer */
    struct lk_layer_job job;          /* of the current layer */
    float *attn_scores;               /* [n_tok][n_head_kv]; NULL if no policy needs scores */
    struct lk_scored_row *order; /* [n_head_kv][n_tok] scratch of lk_evict_select; NULL if unused */
    struct lk_evict_scratch scratch; /* bytes of attn_scores and order */
    struct lk_graph graph;
    bool embeds; /* x becomes the hidden states after the final norm, and no logits are computed */
};

static void free_prefill(struct prefill *p) {
    struct lk_ledger *ledger = &p->s->ledger;
    lk_graph_free(&p->graph, ledger);
    for (int i = 0; i < 4; i++)
        lk_release(ledger, LK_FOR_SCRATCH, p->exact_kv[i / 2][i % 2].block,
                   p->exact_kv[i / 2][i % 2].size);
    lk_release(ledger, LK_FOR_SCRATCH, p->x, p->x_size);
    lk_release(ledger, LK_FOR_SCRATCH, p->attn_scores, p->scratch.attn_scores);
    lk_release(ledger, LK_FOR_SCRATCH, p->order, p->scratch.ranked);
}

/* Bytes of K, or of V, of one token in the layers of a kind. */
static size_t exact_bytes(const struct lk_hparams *hp, int kind, int side) {
    if (hp->d_rope > 0)
        return kind ? 0 : (side == LK_K ? hp->d_rope : hp->d_head) * sizeof(uint16_t);
    int32_t width = hp->n_shared == 0 ? lk_hparams_max_width(hp)
                    : kind            ? hp->n_head_kv_swa * hp->d_head_swa
                                      : hp->n_head_kv * hp->d_head;
    return kind && hp->n_shared == 0 ? 0 : (size_t)width * sizeof(uint16_t);
}

uint64_t lk_prefill_exact_bytes(const struct lk_hparams *hp) {
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += exact_bytes(hp, i / 2, i % 2);
    return sum;
}

/* The caller frees what was allocated, also after a failure. */
static lk_status alloc_prefill(struct prefill *p, lk_err *err) {
    struct lk_ledger *ledger = &p->s->ledger;
    const struct lk_hparams *hp = &p->net->hp;
    bool ok = true;
    p->x_size = p->n_tok * hp->n_embd * sizeof(float);
    p->scratch = lk_evict_scratch(p->s->cache, (int64_t)p->n_tok);
    p->x = lk_alloc(ledger, LK_FOR_SCRATCH, p->x_size);
    for (int i = 0; i < 4 && exact_bytes(hp, i / 2, i % 2) > 0; i++) {
        struct exact_rows *exact = &p->exact_kv[i / 2][i % 2];
        exact->size = p->n_tok * exact_bytes(hp, i / 2, i % 2);
        exact->block = lk_alloc(ledger, LK_FOR_SCRATCH, exact->size);
        ok &= exact->block != NULL;
    }
    if (p->scratch.attn_scores)
        p->attn_scores = lk_alloc(ledger, LK_FOR_SCRATCH, p->scratch.attn_scores);
    if (p->scratch.ranked) p->order = lk_alloc(ledger, LK_FOR_SCRATCH, p->scratch.ranked);
    if (p->x && ok && (p->attn_scores || !p->scratch.attn_scores) &&
        (p->order || !p->scratch.ranked))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "out of memory for the exact prefill of %zu tokens (%.1f MiB); use chunked "
                   "prefill instead",
                   p->n_tok,
                   (double)(p->x_size + p->n_tok * lk_prefill_exact_bytes(hp)) / (1 << 20));
}

/* Let the exact rows be those of the current layer, or of the layer whose rows it attends to. */
static void choose_exact(struct prefill *p) {
    const struct lk_hparams *hp = &p->net->hp;
    p->exact = p->exact_kv[hp->n_shared > 0 && hp->is_swa[p->job.layer]];
    if (!p->job.stores || hp->is_recurrent[p->job.layer]) return;
    for (int side = 0; side < 2; side++) {
        struct exact_rows *exact = &p->exact[side];
        const struct lk_kv *kv = &p->s->cache->kv[p->job.index][side];
        size_t head_bytes = lk_codec_head_bytes(&lk_codec_f16, side, kv->d_head, (int)p->n_tok);
        exact->kv =
            (struct lk_kv){.side = side,
                           .n_head = kv->n_head,
                           .d_head = kv->d_head,
                           .n_level = 1,
                           .shard = kv->shard,
                           .whole = true}; /* attention is divided among ranks, rows are not */
        exact->kv.rule[0] =
            (struct lk_level_rule){.codec = lk_codec_f16, .block_rows = (int)p->n_tok};
        exact->kv.level[0] = (struct lk_level){.block = &exact->block,
                                               .n_block = 1,
                                               .head_bytes = head_bytes,
                                               .block_bytes = head_bytes * kv->n_head,
                                               .n_part = kv->n_head,
                                               .d_part = kv->d_head,
                                               .n_head = 1};
    }
}

/* If a session has a memory limit, check that the whole prompt fits before the first token is
 * computed. */
static lk_status check_memory_limit(const struct prefill *p, const struct lk_session *s,
                                    lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    if (!s->ledger.limit) return LK_OK;
    struct lk_cache_needs needs;
    uint64_t held =
        lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH) + lk_ledger_bytes(&s->ledger, LK_FOR_OTHER);
    lk_status status =
        lk_cache_estimate(s->recipe, &s->cache->shape, (int64_t)p->n_tok, &needs, err);
    if (status != LK_OK) return status;
    uint64_t cache = needs.cache;
    uint64_t exact = p->n_tok * (hp->n_embd * sizeof(float) + lk_prefill_exact_bytes(hp)) +
                     needs.evict_scratch.attn_scores + needs.evict_scratch.ranked;
    if (held + cache + exact <= s->ledger.limit) return LK_OK;
    return lk_fail(
        err, LK_E_NOMEM,
        "%zu tokens need %.0f MiB (%.0f MiB of it cache), but the limit is %.0f MiB; use "
        "a smaller recipe or chunked prefill",
        p->n_tok, (double)(held + cache + exact) / (1 << 20), (double)cache / (1 << 20),
        (double)s->ledger.limit / (1 << 20));
}

/* ---- the graph of one chunk in one layer ---- */

/* Custom node. src: k, v and q of the chunk (struct lk_qkv). Writes the
 * K and V rows after the exact rows of earlier chunks; the row counts already include them. Shows
 * the first chunk's queries to the caches. */
static void store_exact_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct prefill *p = userdata;
    int n_head = p->job.heads.n_kv, n = (int)dst->src[0]->ne[2];
    for (int i = ith; i < 2 * n_head; i += nth) {
        int side = i / n_head, head = i % n_head;
        const struct lk_kv *kv = &p->exact[side].kv;
        int d = kv->level[0].d_part;
        struct lk_part part = {&lk_codec_f16, side, d, kv->rule[0].block_rows, NULL};
        p->s->model->kernels->encode(
            &part, (char *)p->exact[side].block + head * kv->level[0].head_bytes,
            (int)kv->n_tok - n, n, (const float *)dst->src[side]->data + (size_t)head * d,
            (size_t)n_head * d);
    }
    if (ith != nth - 1 || p->exact[LK_K].kv.n_tok > CHUNK) return;
    for (size_t i = 0; i < p->n_session; i++)
        lk_cache_observe(p->session[i]->cache, p->job.index, dst->src[2]->data, n,
                         p->net->hp.n_head);
}

/* Custom node. Selects the rows that a layer with an eviction policy keeps. */
static void select_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct prefill *p = userdata;
    const struct lk_kv *const exact[] = {&p->exact[LK_K].kv, &p->exact[LK_V].kv};
    const struct lk_evict *evict = p->s->cache->kv[p->job.index][LK_K].evict;
    for (int head = ith; head < p->job.heads.n_kv; head += nth)
        lk_evict_select(p->s->cache, p->job.index, head,
                        evict->needs_scores ? p->attn_scores : NULL, exact,
                        p->order + (size_t)head * p->n_tok);
}

/* Custom node. Encodes the layer's exact rows, which are complete, into the caches, and into those
 * of the planned checkpoints. */
static void encode_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct prefill *p = userdata;
    const struct lk_checkpoints *c = &p->s->checkpoints;
    int n_head = p->job.heads.n_kv, layer = p->job.index;
    for (int i = ith; i < 2 * n_head; i += nth) {
        const struct lk_kv *exact = &p->exact[i / n_head].kv;
        for (size_t k = 0; k < p->n_session; k++)
            lk_cache_encode_prompt(p->session[k]->cache, layer, i / n_head, i % n_head, exact);
        for (int k = 0; k < c->n_planned; k++)
            lk_cache_encode_part(c->planned[k].cache, p->s->cache, layer, i / n_head, i % n_head,
                                 exact);
    }
}

/* The chunk's attention. After the last chunk, the layer's rows go to the caches. */
static struct ggml_tensor *chunk_attention(struct prefill *p, const struct lk_qkv *pre,
                                           bool last_chunk) {
    if (!p->job.stores) return lk_attention_nodes(p->graph.ctx, &p->job, pre, pre->q);
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *stored = lk_graph_effect(p->graph.ctx, store_exact_node, rows, 3, p);
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
static lk_status build_chunk(struct prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    bool last_layer = layer == hp->n_layer - 1, last_chunk = at + n == p->n_tok;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, n);
    g->pos = lk_graph_input(g, n);
    ggml_set_input(g->x_in);
    struct lk_qkv pre = p->net->family->pre(p->net, g->ctx, layer, g->x_in, g->pos);
    if (p->net->family->token_input) {
        g->tok = lk_graph_input(g, n);
        pre.tok = p->net->family->token_input(p->net, g->ctx, layer, g->tok);
    }
    struct ggml_tensor *attn = hp->is_recurrent[layer] ? lk_recurrence_nodes(g->ctx, &p->job, &pre)
                                                       : chunk_attention(p, &pre, last_chunk);
    if (hp->is_recurrent[layer]) ggml_build_forward_expand(g->graph, attn); /* for its effect */
    bool goes_on = !last_layer || p->embeds || hp->mtp; /* x of all tokens is needed */
    if (!goes_on && !last_chunk) return lk_graph_finish(g, &p->s->ledger, err);
    struct ggml_tensor *x = p->net->family->post(p->net, g->ctx, layer, &pre, attn);
    if (last_layer && p->embeds) x = p->net->family->norm(p->net, g->ctx, x);
    if (goes_on) {
        g->x_out = x;
        ggml_set_output(g->x_out);
        ggml_build_forward_expand(g->graph, g->x_out);
    }
    if (last_layer && last_chunk && !p->embeds) {
        x = ggml_cont(g->ctx, ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n - 1) * x->nb[1]));
        g->logits = p->net->family->head(p->net, g->ctx, x);
        ggml_set_output(g->logits);
        ggml_build_forward_expand(g->graph, g->logits);
    }
    return lk_graph_finish(g, &p->s->ledger, err);
}

/* Let the pass have one sequence: the n newest of n_tok exact rows of `layer`. */
static void set_sequence(struct prefill *p, int layer, size_t n_tok, int n) {
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

/* before: what happened on this rank before the chunk. The result is that of all ranks. */
static lk_status run_chunk(struct prefill *p, int layer, size_t at, size_t n, lk_status before,
                           lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    lk_status status = before;
    if (status == LK_OK) status = build_chunk(p, layer, at, n, err);
    if (status == LK_OK && p->s->model->cluster)
        status = lk_graph_reserve_work(&p->graph, p->s->model, err);
    status = lk_cluster_agree(p->s->model->cluster, status, err);
    if (status != LK_OK) return status;
    struct lk_graph *g = &p->graph;
    struct lk_cluster *c = p->s->model->cluster;
    memcpy(g->x_in->data, p->x + at * hp->n_embd, n * hp->n_embd * sizeof(float));
    if (g->tok && g->tok->data) /* not if the chunk only computes K and V */
        memcpy(g->tok->data, p->tok + at, n * sizeof *p->tok);
    lk_graph_set_positions(g, 0, at, n);
    set_sequence(p, layer, at + n, (int)n);
    status = lk_graph_run(g, p->s->model, err);
    if (status != LK_OK) lk_cluster_abort(c, err->msg); /* the others wait for partial attention */
    if (status == LK_OK && c && p->s->pass.seq[0].failed == LK_E_IO)
        status = lk_cluster_fail_lost(err);
    if (status == LK_OK && g->x_out)
        memcpy(p->x + at * hp->n_embd, g->x_out->data, n * hp->n_embd * sizeof(float));
    return status;
}

/* Token embeddings of tokens [at, at + n), into x. */
static lk_status embed_chunk(struct prefill *p, size_t at, size_t n, lk_err *err) {
    struct lk_graph *g = &p->graph;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->tok = lk_graph_input(g, n);
    g->pos = lk_graph_input(g, n);
    g->x_out = p->net->family->embed(p->net, g->ctx, g->tok, g->pos);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, &p->s->ledger, err);
    if (status != LK_OK) return status;
    memcpy(g->tok->data, p->tok + at, n * sizeof *p->tok);
    lk_graph_set_positions(g, 0, at, n);
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK)
        memcpy(p->x + at * p->net->hp.n_embd, g->x_out->data, ggml_nbytes(g->x_out));
    return status;
}

/* ---- the prompt ---- */

/* Number of tokens of the chunk that starts at `at`. States of recurrent layers exist only at the
 * end of a chunk, so chunks of such models also end at the planned checkpoints. */
static size_t chunk_length(const struct prefill *p, size_t at) {
    const struct lk_checkpoints *c = &p->s->checkpoints;
    size_t end = at / CHUNK * CHUNK + CHUNK;
    if (end > p->n_tok) end = p->n_tok;
    for (int i = 0; p->s->recurrent && i < c->n_planned; i++)
        if (c->planned[i].n_tok > at && c->planned[i].n_tok < end) end = c->planned[i].n_tok;
    return end - at;
}

/* Memory of the layer's rows. A planned checkpoint without memory, on any rank, is dropped. */
static lk_status alloc_layer(struct prefill *p, lk_err *err) {
    struct lk_checkpoints *c = &p->s->checkpoints;
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < p->n_session; i++)
        status = lk_cache_alloc_prompt(p->session[i]->cache, p->job.index, (int64_t)p->n_tok, err);
    status = lk_cluster_agree(p->s->model->cluster, status, err);
    for (int i = c->n_planned - 1; status == LK_OK && i >= 0; i--) {
        bool ok = lk_cache_alloc_part(c->planned[i].cache, p->s->cache, p->job.index,
                                      (int64_t)c->planned[i].n_tok);
        if (!lk_cluster_all(p->s->model->cluster, ok)) lk_checkpoints_drop_planned(p->s, i);
    }
    return status;
}

/* Copy the state of a recurrent layer after n_tok tokens to the checkpoint planned there. */
static void keep_state(struct prefill *p, int layer, size_t n_tok) {
    const struct lk_checkpoints *c = &p->s->checkpoints;
    const struct lk_hparams *hp = &p->net->hp;
    size_t n = lk_recurrent_layer_bytes(hp);
    for (int i = 0; i < c->n_planned; i++)
        if (c->planned[i].n_tok == n_tok)
            memcpy(lk_recurrent_state(hp, c->planned[i].states, layer),
                   lk_recurrent_state(hp, p->s->recurrent, layer), n);
}

/* ---- the layer that predicts further tokens ---- */

/* K and V of tokens [at, at + n). x_in: the last layer's output for the tokens before. */
static lk_status build_mtp_chunk(struct prefill *p, size_t at, size_t n, lk_err *err) {
    const struct lk_net *net = p->net;
    struct lk_graph *g = &p->graph;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, net->hp.n_embd, n);
    g->tok = lk_graph_input(g, n);
    g->pos = lk_graph_input(g, n);
    ggml_set_input(g->x_in);
    struct ggml_tensor *x =
        lk_mtp_input(net, g->ctx, g->tok, net->family->norm(net, g->ctx, g->x_in));
    struct lk_qkv pre = net->family->pre(net, g->ctx, net->hp.n_layer, x, g->pos);
    struct ggml_tensor *rows[] = {pre.k, pre.v, pre.q};
    struct ggml_tensor *done = lk_graph_effect(g->ctx, store_exact_node, rows, 3, p);
    bool last_chunk = at + n == p->n_tok, selects = p->s->cache->kv[p->job.index][LK_K].evict;
    if (last_chunk && selects) done = lk_graph_effect(g->ctx, select_node, &done, 1, p);
    if (last_chunk) done = lk_graph_effect(g->ctx, encode_node, &done, 1, p);
    ggml_build_forward_expand(g->graph, done);
    return lk_graph_finish(g, &p->s->ledger, err);
}

static lk_status run_mtp_chunk(struct prefill *p, size_t at, size_t n, lk_err *err) {
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
    set_sequence(p, p->net->hp.n_layer, at + n, (int)n);
    return lk_graph_run(g, p->s->model, err);
}

/* Write the hidden state after n_tok tokens to `states`. */
static lk_status keep_hidden(struct prefill *p, size_t n_tok, float *states, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    size_t row = hp->n_embd * sizeof(float);
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
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

static lk_status run_mtp(struct prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    const struct lk_checkpoints *c = &s->checkpoints;
    p->job = lk_pass_job(&s->pass, p->net->hp.n_layer);
    choose_exact(p);
    if (p->attn_scores) memset(p->attn_scores, 0, p->scratch.attn_scores);
    lk_status status = alloc_layer(p, err);
    for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK)
        status = run_mtp_chunk(p, at, p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK, err);
    for (int i = 0; status == LK_OK && i < c->n_planned; i++)
        status = keep_hidden(p, c->planned[i].n_tok, c->planned[i].states, err);
    return status == LK_OK ? keep_hidden(p, p->n_tok, s->recurrent, err) : status;
}

/* ---- all layers ---- */

static lk_status run_layers(struct prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    int n_layer = p->net->hp.n_layer;
    lk_status status = LK_OK, here = LK_OK; /* on all ranks; on this one, until run_chunk */
    for (int layer = 0; status == LK_OK && layer < n_layer; layer++) {
        p->job = lk_pass_job(&s->pass, layer);
        choose_exact(p);
        if (p->attn_scores && p->job.stores) memset(p->attn_scores, 0, p->scratch.attn_scores);
        bool is_recurrent = p->net->hp.is_recurrent[layer];
        if (!is_recurrent && p->job.stores) status = alloc_layer(p, err);
        /* Only K and V of earlier tokens matter from there on, and this layer has none. */
        size_t first = p->job.stores || p->embeds ? 0 : (p->n_tok - 1) / CHUNK * CHUNK;
        for (size_t at = first, n; status == LK_OK && at < p->n_tok; at += n) {
            n = chunk_length(p, at);
            if (here == LK_OK && s->cancelled && atomic_exchange(&s->cancelled, 0))
                here = lk_fail(err, LK_E_CANCELLED, "cancelled");
            status = run_chunk(p, layer, at, n, here, err);
            if (status == LK_OK && is_recurrent) keep_state(p, layer, at + n);
            if (status == LK_OK && s->opts.progress &&
                !s->opts.progress(s->opts.user, (uint64_t)layer * p->n_tok + at + n,
                                  (uint64_t)n_layer * p->n_tok))
                here = lk_fail(err, LK_E_CANCELLED, "cancelled during prefill");
        }
    }
    status = status == LK_OK ? lk_cluster_agree(s->model->cluster, here, err) : status;
    for (size_t i = 0; status == LK_OK && !p->embeds && i < p->n_session; i++)
        memcpy(p->session[i]->logits, p->graph.logits->data, ggml_nbytes(p->graph.logits));
    return status == LK_OK && p->net->hp.mtp && !p->embeds ? run_mtp(p, err) : status;
}

static lk_status run_prefill(struct prefill *p, lk_err *err) {
    struct lk_pass *pass = &p->s->pass;
    lk_status status = lk_pass_reset(pass, 1, err);
    if (status == LK_OK) lk_pass_add(pass, p->s, p->n_tok < CHUNK ? (int)p->n_tok : CHUNK, 0);
    if (status == LK_OK) status = lk_pass_reserve_attn(pass, err);
    for (size_t i = 0; status == LK_OK && i < p->n_session; i++)
        status = check_memory_limit(p, p->session[i], err);
    if (status == LK_OK) status = alloc_prefill(p, err);
    for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK)
        status = embed_chunk(p, at, p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK, err);
    status = lk_cluster_agree(p->s->model->cluster, status, err);
    return status == LK_OK ? run_layers(p, err) : status;
}

/* Compute the prompt once for n sessions. A session whose policies select rows must be alone. */
static lk_status prefill_group(struct lk_session *const *session, size_t n, const int32_t *tok,
                               size_t n_tok, lk_err *err) {
    struct prefill p = {.s = session[0],
                        .session = session,
                        .n_session = n,
                        .net = session[0]->model->net,
                        .n_tok = n_tok,
                        .tok = tok};
    lk_checkpoints_open_planned(p.s);
    lk_status status = run_prefill(&p, err);
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        struct lk_session *s = session[i];
        memcpy(s->tok, tok, n_tok * sizeof *tok);
        if (i > 0 && s->recurrent)
            memcpy(s->recurrent, p.s->recurrent, lk_recurrent_bytes(&p.net->hp));
        s->n_logits = 1;
        s->n_tok = n_tok;
    }
    if (status == LK_OK) lk_checkpoints_keep_planned(p.s);
    free_prefill(&p);
    return status;
}

/* Pool the rows of x into out [n_embd], and scale the result to length 1. */
static void pool_rows(const struct prefill *p, lk_pooling pooling, float *out) {
    enum { BLOCK = 64 }; /* channels that are summed at once */
    size_t n_embd = (size_t)p->net->hp.n_embd;
    size_t first = pooling == LK_POOLING_MEAN ? 0 : p->n_tok - 1;
    double length = 0;
    for (size_t c = 0; c < n_embd; c += BLOCK) {
        double sum[BLOCK] = {0};
        size_t n = n_embd - c < BLOCK ? n_embd - c : BLOCK;
        for (size_t row = first; row < p->n_tok; row++)
            for (size_t k = 0; k < n; k++) sum[k] += p->x[row * n_embd + c + k];
        for (size_t k = 0; k < n; k++) {
            out[c + k] = (float)(sum[k] / (double)(p->n_tok - first));
            length += (double)out[c + k] * out[c + k];
        }
    }
    for (size_t c = 0; length > 0 && c < n_embd; c++) out[c] = (float)(out[c] / sqrt(length));
}

lk_status lk_session_embed(lk_session *s, const int32_t *tok, size_t n_tok, lk_pooling pooling,
                           float *out, lk_err *err) {
    const struct lk_net *net = s->model->net;
    if (pooling == LK_POOLING_MODEL)
        pooling = net->hp.pooling ? (lk_pooling)net->hp.pooling : LK_POOLING_MEAN;
    if (pooling != LK_POOLING_MEAN && pooling != LK_POOLING_LAST)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "embeddings are pooled by mean or by last token, not by type %d",
                       (int)pooling);
    lk_status status = lk_cluster_check_led(s->model->cluster, err);
    if (status == LK_OK) status = lk_session_check_text(s, tok, n_tok, err);
    if (status == LK_OK && lk_factors_sides(s->model))
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "embeddings need exact keys and values, but the model's weights are "
                         "replaced by factors; open it without");
    if (status != LK_OK) return status;
    lk_session_drop_tokens(s);
    struct prefill p = {.s = s,
                        .session = &s,
                        .n_session = 1,
                        .net = net,
                        .n_tok = n_tok,
                        .tok = tok,
                        .embeds = true};
    status = lk_session_reserve_absorb(s, 1, err);
    if (status == LK_OK) status = run_prefill(&p, err);
    if (status == LK_OK) pool_rows(&p, pooling, out);
    free_prefill(&p);
    lk_session_drop_tokens(s);
    lk_cache_trim(s->cache);
    return status;
}

/* Does a policy of this session select rows? */
static bool selects_rows(const struct lk_session *s) {
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        if (s->cache->kv[layer][LK_K].evict) return true;
    return false;
}

/* lk_prefill_all on this rank. */
static lk_status prefill_sessions(struct lk_session *const *session, size_t n, const int32_t *tok,
                                  size_t n_tok, lk_err *err) {
    struct lk_ledger *ledger = &session[0]->ledger;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) lk_session_drop_tokens(session[i]);
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        if (n_tok > (size_t)session[i]->opts.n_ctx)
            status = lk_fail(err, LK_E_FULL,
                             "%zu tokens do not fit a context of %d; use a larger context length",
                             n_tok, session[i]->opts.n_ctx);
        if (status == LK_OK) status = lk_session_reserve_logits(session[i], 1, err);
        if (status == LK_OK) status = lk_session_reserve_absorb(session[i], 1, err);
    }
    struct lk_session **group = lk_alloc(ledger, LK_FOR_OTHER, n * sizeof *group);
    size_t n_group = 0;
    if (status == LK_OK && !group)
        status = lk_fail(err, LK_E_NOMEM, "out of memory for %zu sessions", n);
    status = lk_cluster_agree(session[0]->model->cluster, status, err);
    for (size_t i = 0; status == LK_OK && i < n; i++)
        if (!selects_rows(session[i]) && !session[i]->recipe->eager) group[n_group++] = session[i];
    if (n_group > 0) status = prefill_group(group, n_group, tok, n_tok, err);
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        if (session[i]->recipe->eager)
            status = lk_session_extend(session[i], tok, n_tok, err);
        else if (selects_rows(session[i]))
            status = prefill_group(&session[i], 1, tok, n_tok, err);
    }
    lk_release(ledger, LK_FOR_OTHER, group, n * sizeof *group);
    for (size_t i = 0; i < n; i++) {
        if (status != LK_OK) lk_session_drop_tokens(session[i]);
        lk_cache_trim(session[i]->cache);
    }
    return status;
}

lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok,
                         size_t n_tok, lk_err *err) {
    struct lk_cluster *c = session[0]->model->cluster;
    struct lk_op op = lk_session_op(session[0], LK_OP_PREFILL);
    struct lk_op_part part[2] = {{tok, n_tok * sizeof *tok}};
    int32_t *number = c ? lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *number) : NULL;
    lk_err why = {0};
    if (c && !number) return lk_fail(err, LK_E_NOMEM, "out of memory for %zu sessions", n);
    for (size_t i = 0; c && i < n; i++) number[i] = session[i]->number;
    part[1] = (struct lk_op_part){number, c ? n * sizeof *number : 0};
    op.n = n_tok;
    lk_status status = lk_cluster_lead(c, op, part, 2, &why);
    if (status == LK_OK) {
        status = prefill_sessions(session, n, tok, n_tok, &why);
        lk_cluster_done(c);
    }
    if (c) lk_release(&c->ledger, LK_FOR_OTHER, number, n * sizeof *number);
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}
