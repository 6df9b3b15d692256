/* Reading a prompt exactly, layer by layer.
 *
 * All tokens pass one layer before the next begins, so only one layer's exact K and V exist at a
 * time (TALE's lazy approximation: a prompt attends to itself exactly, and is compressed after).
 * Peak memory: the compressed cache, one layer's exact f16 rows, and the hidden states. */
#include "engine/engine.h"

#include <string.h>

enum { CHUNK = LK_EVAL_MAX, NODES = 2 * LK_LAYER_NODES };

/* One side of the layer at hand: a stream whose only level has one block, with room for all rows. */
struct exact {
    struct lk_kv kv;
    void *block; /* [n_head_kv][n_tok][d_head] halves */
};

struct prefill {
    struct lk_session *s;          /* computes: the first of all */
    struct lk_session *const *all; /* [n_all] get the rows */
    size_t n_all;
    const struct lk_net *net;
    size_t n_tok;
    float *x; /* [n_tok][n_embd] hidden states */
    size_t x_size;
    struct exact exact[2];
    size_t exact_size;       /* bytes of one side's block */
    struct lk_layer_job job; /* attends to them */
    float *attn_scores;      /* [n_tok][n_head_kv] weights of rows, where a policy listens */
    struct lk_ranked *order; /* [n_head_kv][n_tok] scratch of choosing, where a level has a limit */
    struct lk_evict_scratch choice; /* bytes of both */
    struct lk_graph graph;
};

static void release(struct prefill *p) {
    struct lk_ledger *ledger = &p->s->ledger;
    lk_graph_free(&p->graph, ledger);
    for (int side = 0; side < 2; side++)
        lk_release(ledger, LK_FOR_SCRATCH, p->exact[side].block, p->exact_size);
    lk_release(ledger, LK_FOR_SCRATCH, p->x, p->x_size);
    lk_release(ledger, LK_FOR_SCRATCH, p->attn_scores, p->choice.attn_scores);
    lk_release(ledger, LK_FOR_SCRATCH, p->order, p->choice.order);
}

/* What choosing rows needs, where a layer chooses. */
static bool take_choice(struct prefill *p) {
    p->choice = lk_evict_scratch(p->s->cache, (int64_t)p->n_tok);
    if (p->choice.attn_scores)
        p->attn_scores = lk_alloc(&p->s->ledger, LK_FOR_SCRATCH, p->choice.attn_scores);
    if (p->choice.order) p->order = lk_alloc(&p->s->ledger, LK_FOR_SCRATCH, p->choice.order);
    return (!p->choice.attn_scores || p->attn_scores) && (!p->choice.order || p->order);
}

static lk_status take(struct prefill *p, lk_err *err) {
    struct lk_ledger *ledger = &p->s->ledger;
    const struct lk_hparams *hp = &p->net->hp;
    size_t head_bytes = lk_codec_head_bytes(&lk_exact, LK_K, hp->d_head, (int)p->n_tok);
    p->x_size = p->n_tok * hp->n_embd * sizeof(float);
    p->exact_size = head_bytes * hp->n_head_kv;
    p->x = lk_alloc(ledger, LK_FOR_SCRATCH, p->x_size);
    for (int side = 0; side < 2; side++) {
        struct exact *exact = &p->exact[side];
        exact->block = lk_alloc(ledger, LK_FOR_SCRATCH, p->exact_size);
        exact->kv = (struct lk_kv){.side = side, .n_level = 1};
        exact->kv.rule[0] = (struct lk_level_rule){.codec = lk_exact, .block_rows = (int)p->n_tok};
        exact->kv.level[0] = (struct lk_level){.block = &exact->block,
                                               .n_block = 1,
                                               .head_bytes = head_bytes,
                                               .block_bytes = p->exact_size,
                                               .n_part = hp->n_head_kv,
                                               .d_part = hp->d_head,
                                               .n_head = 1};
    }
    bool choice = take_choice(p);
    if (choice && p->x && p->exact[LK_K].block && p->exact[LK_V].block) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "no memory to read %zu tokens exactly (%.1f MiB); read them as a stream instead",
                   p->n_tok, (double)(p->x_size + 2 * p->exact_size) / (1 << 20));
}

/* ---- the graph of one chunk in one layer ---- */

/* Custom node: K and V rows of the chunk, src[0] and src[1] as [n][n_head_kv][d_head], behind the
 * exact rows before them. The streams' counts include them already. Of the first chunk's queries,
 * src[2], the cache takes notice. */
static void keep_exact(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct prefill *p = userdata;
    int n_head = p->net->hp.n_head_kv, d = p->net->hp.d_head, n = (int)dst->src[0]->ne[2];
    for (int i = ith; i < 2 * n_head; i += nth) {
        int side = i / n_head, head = i % n_head;
        const struct lk_kv *kv = &p->exact[side].kv;
        p->s->model->kernels->encode(
            &lk_exact, side, d, kv->rule[0].block_rows, NULL,
            (char *)p->exact[side].block + head * kv->level[0].head_bytes, (int)kv->n_tok - n, n,
            (const float *)dst->src[side]->data + (size_t)head * d, (size_t)n_head * d);
    }
    if (ith != nth - 1 || p->exact[LK_K].kv.n_tok != n) return;
    for (size_t i = 0; i < p->n_all; i++)
        lk_cache_observe(p->all[i]->cache, p->job.layer, dst->src[2]->data, n, p->net->hp.n_head);
}

/* Custom node: which of the layer's rows stay, in a layer with slots. */
static void choose(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct prefill *p = userdata;
    const struct lk_kv *const exact[] = {&p->exact[LK_K].kv, &p->exact[LK_V].kv};
    const struct lk_evict *evict = lk_seq_evict(&p->s->pass.seq[0], p->job.layer);
    for (int head = ith; head < p->net->hp.n_head_kv; head += nth)
        lk_evict_select(p->s->cache, p->job.layer, head,
                        evict->needs_scores ? p->attn_scores : NULL, exact,
                        p->order + (size_t)head * p->n_tok);
}

/* Custom node: the layer's exact rows, all there, into the caches. */
static void compress(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    struct prefill *p = userdata;
    int n_head = p->net->hp.n_head_kv;
    for (size_t k = 0; k < p->n_all; k++)
        for (int i = ith; i < 2 * n_head; i += nth)
            lk_cache_encode_prompt(p->all[k]->cache, p->job.layer, i / n_head, i % n_head,
                                   &p->exact[i / n_head].kv);
}

static struct ggml_tensor *attend(struct prefill *p, const struct lk_pre *pre, bool last_chunk) {
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *kept = lk_graph_effect(p->graph.ctx, keep_exact, rows, 3, p);
    ggml_build_forward_expand(p->graph.graph, kept);
    bool chooses = lk_seq_evict(&p->s->pass.seq[0], p->job.layer);
    struct ggml_tensor *ready = kept, *attn = NULL;
    if (last_chunk && chooses) { /* the prompt attends fully, and what it attended to decides */
        attn = lk_attention_nodes(p->graph.ctx, &p->job, pre, kept, lk_combine_node);
        ready = lk_graph_effect(p->graph.ctx, choose, &attn, 1, p);
    }
    if (last_chunk)
        ggml_build_forward_expand(p->graph.graph,
                                  lk_graph_effect(p->graph.ctx, compress, &ready, 1, p));
    return attn ? attn : lk_attention_nodes(p->graph.ctx, &p->job, pre, kept, lk_combine_node);
}

/* The streams with n rows of `layer`. */
static void count_exact(struct prefill *p, int layer, size_t n) {
    const struct lk_hparams *hp = &p->net->hp;
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &p->exact[side].kv;
        kv->n_tok = kv->fill[0].rows = (int64_t)n;
        kv->n_swa = hp->n_swa > 0 && hp->is_swa[layer] ? hp->n_swa : 0;
    }
}

/* Chunk [at, at + n) through `layer`: K and V into the exact rows, and these, after the last chunk, into
 * the cache; x into x_out, and after the last layer
 * the last token's logits. Earlier chunks of the last layer leave nothing but K and V. */
static lk_status build(struct prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    bool last_layer = layer == hp->n_layer - 1, last_chunk = at + n == p->n_tok;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, n);
    g->pos = lk_graph_input(g, n);
    ggml_set_input(g->x_in);
    struct lk_pre pre = p->net->family->pre(p->net, g->ctx, layer, g->x_in, g->pos);
    struct ggml_tensor *attn = attend(p, &pre, last_chunk);
    if (!last_layer || last_chunk) {
        struct ggml_tensor *x = p->net->family->post(p->net, g->ctx, layer, &pre, attn);
        if (last_layer) {
            x = ggml_cont(g->ctx,
                          ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n - 1) * x->nb[1]));
            g->logits = p->net->family->head(p->net, g->ctx, x);
            ggml_set_output(g->logits);
            ggml_build_forward_expand(g->graph, g->logits);
        } else {
            g->x_out = x;
            ggml_set_output(g->x_out);
            ggml_build_forward_expand(g->graph, g->x_out);
        }
    }
    return lk_graph_finish(g, &p->s->ledger, err);
}

/* n rows of the layer's newest, alone in the session's pass. */
static void seat(struct prefill *p, int n) {
    struct lk_pass *pass = &p->s->pass;
    pass->n_seq = 0;
    struct lk_seq *seq = lk_pass_add(pass, p->s, n);
    for (int side = 0; side < 2; side++) seq->read[side] = &p->exact[side].kv;
    struct lk_attn attn = pass->attn;
    attn.n_tok = n;
    seq->n_range = lk_attn_ranges(&attn, seq->read[LK_K], seq->read[LK_V]);
    seq->attn_scores = p->attn_scores;
}

static lk_status run_chunk(struct prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    lk_status status = build(p, layer, at, n, err);
    if (status != LK_OK) return status;
    struct lk_graph *g = &p->graph;
    memcpy(g->x_in->data, p->x + at * hp->n_embd, n * hp->n_embd * sizeof(float));
    lk_graph_set_positions(g, 0, at, n);
    count_exact(p, layer, at + n);
    seat(p, (int)n);
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK && g->x_out)
        memcpy(p->x + at * hp->n_embd, g->x_out->data, n * hp->n_embd * sizeof(float));
    return status;
}

static lk_status embed(struct prefill *p, const int32_t *tok, size_t at, size_t n, lk_err *err) {
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
    memcpy(g->tok->data, tok + at, n * sizeof *tok);
    lk_graph_set_positions(g, 0, at, n);
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK)
        memcpy(p->x + at * p->net->hp.n_embd, g->x_out->data, ggml_nbytes(g->x_out));
    return status;
}

/* With a limit, whether the whole prompt will fit is known before its first token is read. */
static lk_status check_limit(const struct prefill *p, const struct lk_session *s, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    if (!s->ledger.limit) return LK_OK;
    struct lk_cache_needs needs;
    uint64_t held =
        lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH) + lk_ledger_bytes(&s->ledger, LK_FOR_OTHER);
    lk_status status =
        lk_cache_estimate(s->recipe, &s->cache->shape, (int64_t)p->n_tok, &needs, err);
    if (status != LK_OK) return status;
    uint64_t cache = needs.cache;
    uint64_t exact = p->n_tok * (hp->n_embd * sizeof(float) +
                                 2ull * hp->n_head_kv * hp->d_head * sizeof(uint16_t)) +
                     needs.choice.attn_scores + needs.choice.order;
    if (held + cache + exact <= s->ledger.limit) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "%zu tokens need %.0f MiB (%.0f of them cache), and %.0f are allowed; use a "
                   "smaller recipe or read them as a stream",
                   p->n_tok, (double)(held + cache + exact) / (1 << 20), (double)cache / (1 << 20),
                   (double)s->ledger.limit / (1 << 20));
}

static lk_status read_all(struct prefill *p, const int32_t *tok, lk_err *err) {
    struct lk_session *s = p->s;
    int n_layer = p->net->hp.n_layer;
    lk_status status = lk_pass_begin(&s->pass, 1, err);
    if (status != LK_OK) return status;
    lk_pass_add(&s->pass, s, p->n_tok < CHUNK ? (int)p->n_tok : CHUNK);
    status = lk_pass_reserve(&s->pass, err);
    for (size_t i = 0; status == LK_OK && i < p->n_all; i++)
        status = check_limit(p, p->all[i], err);
    if (status == LK_OK) status = take(p, err);
    for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK)
        status = embed(p, tok, at, p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK, err);
    for (int layer = 0; status == LK_OK && layer < n_layer; layer++) {
        p->job.layer = layer;
        if (p->attn_scores) memset(p->attn_scores, 0, p->choice.attn_scores);
        for (size_t i = 0; status == LK_OK && i < p->n_all; i++)
            status = lk_cache_alloc_prompt(p->all[i]->cache, layer, (int64_t)p->n_tok, err);
        for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK) {
            size_t n = p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK;
            status = run_chunk(p, layer, at, n, err);
            if (status == LK_OK && s->opts.progress &&
                !s->opts.progress(s->opts.user, (uint64_t)layer * p->n_tok + at + n,
                                  (uint64_t)n_layer * p->n_tok))
                status = lk_fail(err, LK_E_CANCELLED, "cancelled while reading the prompt");
        }
    }
    return status;
}

/* Logits and tokens of a prompt that was read. */
static void conclude(const struct prefill *p, struct lk_session *s, const int32_t *tok) {
    memcpy(s->logits, p->graph.logits->data, ggml_nbytes(p->graph.logits));
    memcpy(s->tok, tok, p->n_tok * sizeof *tok);
    s->n_logits = 1;
    s->n_tok = p->n_tok;
}

/* Sessions whose policies choose rows come alone. */
static lk_status read_together(struct lk_session *const *session, size_t n, const int32_t *tok,
                               size_t n_tok, lk_err *err) {
    struct prefill p = {.s = session[0],
                        .all = session,
                        .n_all = n,
                        .net = session[0]->model->net,
                        .n_tok = n_tok,
                        .job = {.pass = &session[0]->pass}};
    lk_status status = read_all(&p, tok, err);
    for (size_t i = 0; status == LK_OK && i < n; i++) conclude(&p, session[i], tok);
    release(&p);
    return status;
}

static bool chooses(const struct lk_session *s) {
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        if (s->cache->kv[layer][LK_K].evict) return true;
    return false;
}

/* First those that can be read together, `group`, room for n; then the others. */
static lk_status read_groups(struct lk_session *const *session, size_t n, struct lk_session **group,
                             const int32_t *tok, size_t n_tok, lk_err *err) {
    size_t n_group = 0;
    for (size_t i = 0; i < n; i++)
        if (!chooses(session[i])) group[n_group++] = session[i];
    lk_status status = n_group ? read_together(group, n_group, tok, n_tok, err) : LK_OK;
    for (size_t i = 0; status == LK_OK && i < n; i++)
        if (chooses(session[i])) status = read_together(&session[i], 1, tok, n_tok, err);
    return status;
}

lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok,
                         size_t n_tok, lk_err *err) {
    struct lk_ledger *ledger = &session[0]->ledger;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) lk_session_clear(session[i]);
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        if (n_tok > (size_t)session[i]->opts.n_ctx)
            status = lk_fail(err, LK_E_FULL,
                             "%zu tokens do not fit into a context of %d; use a larger one", n_tok,
                             session[i]->opts.n_ctx);
        if (status == LK_OK) status = lk_session_reserve_logits(session[i], 1, err);
        if (status == LK_OK) status = lk_session_reserve_absorb(session[i], 1, err);
    }
    struct lk_session **group = lk_alloc(ledger, LK_FOR_OTHER, n * sizeof *group);
    if (status == LK_OK && !group)
        status = lk_fail(err, LK_E_NOMEM, "no memory for %zu sessions", n);
    if (status == LK_OK) status = read_groups(session, n, group, tok, n_tok, err);
    lk_release(ledger, LK_FOR_OTHER, group, n * sizeof *group);
    for (size_t i = 0; i < n; i++) {
        if (status != LK_OK) lk_session_clear(session[i]);
        lk_cache_trim(session[i]->cache);
    }
    return status;
}

lk_status lk_prefill(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    return lk_prefill_all(&s, 1, tok, n_tok, err);
}
