/* The exact rows of a layer, and the graph of a chunk of tokens in it. */
#include "engine/prefill_layer.h"

#include "cache/equalizer.h"
#include "engine/device_rows.h"
#include "engine/on_card.h"
#include "engine/pass.h"
#include "engine/pass_attn.h"
#include "engine/recurrent.h"

#include <string.h>

/* K or V of the current layer in the first session. */
static const struct lk_kv *kv_of(const struct lk_prefill *p, int side) {
    return &p->s->cache->kv[p->job.index][side];
}

/* Make exact->rows [n_head][n][d_head] rows of kv. */
static void wrap_rows(struct lk_exact_rows *exact, const struct lk_kv *kv, int n) {
    size_t head_bytes = lk_codec_head_bytes(&lk_codec_f16, kv->side, kv->d_head, n);
    exact->kv = (struct lk_kv){.side = kv->side,
                               .n_head = kv->n_head,
                               .d_head = kv->d_head,
                               .arena = &exact->arena,
                               .n_level = 1,
                               .share = kv->share,
                               .has_all_rows = true}; /* attention is divided, rows are not */
    exact->kv.rule[0] = (struct lk_level_rule){.codec = lk_codec_f16, .block_rows = n};
    exact->block = lk_arena_wrap(&exact->arena, &exact->slab, exact->rows);
    exact->kv.level[0] = (struct lk_level){.block = &exact->block,
                                           .n_block = 1,
                                           .head_bytes = head_bytes,
                                           .block_bytes = head_bytes * kv->n_head,
                                           .n_part = kv->n_head,
                                           .d_part = kv->d_head,
                                           .n_head = 1};
}

/* Does the current layer have K and V of its own? */
static bool has_rows(const struct lk_prefill *p) {
    return p->job.stores && !p->net->hp.is_recurrent[p->job.layer];
}

/* Let the exact rows be those of the current layer, or of the layer whose rows it attends to. */
static void choose_exact(struct lk_prefill *p) {
    const struct lk_hparams *hp = &p->net->hp;
    p->exact = p->exact_kv[hp->n_shared > 0 && hp->is_swa[p->job.layer]];
    if (!has_rows(p)) return;
    int n = (int)lk_prefill_rows(p->n_tok, p->n_replay);
    for (int side = 0; side < 2; side++) wrap_rows(&p->exact[side], kv_of(p, side), n);
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
    if (ith != nth - 1 || p->at >= LK_PREFILL_CHUNK || p->at >= p->n_tok) return;
    for (size_t i = 0; i < p->n_session; i++)
        lk_cache_observe(p->session[i]->cache, p->job.index, dst->src[2]->data, n,
                         p->net->hp.n_head);
}

/* Forgets the rows of the replay. */
static void forget_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst, (void)nth;
    struct lk_prefill *p = userdata;
    for (int side = 0; side < 2 && ith == 0; side++)
        p->exact[side].kv.n_tok = p->exact[side].kv.count[0].rows = (int64_t)p->n_tok;
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

/* ---- a layer on the card ---- */

static bool observes(const struct lk_prefill *p) {
    for (size_t i = 0; i < p->n_session; i++)
        if (lk_cache_observes(p->session[i]->cache, p->job.index)) return true;
    return false;
}

/* How many of the first rows channel statistics need. */
static int64_t count_first(const struct lk_prefill *p, int side) {
    int64_t max = 0;
    for (size_t i = 0; i < p->n_session; i++) {
        int64_t n =
            lk_cache_needs_first(p->session[i]->cache, p->job.index, side, (int64_t)p->n_tok);
        if (n > max) max = n;
    }
    return max;
}

/* Make *mem at least `size` bytes. */
static bool reserve(struct lk_prefill *p, void **mem, size_t *have, size_t size) {
    if (size <= *have) return true;
    if (!lk_grow(&p->s->ledger, LK_FOR_SCRATCH, mem, *have, size)) return false;
    *have = size;
    return true;
}

/* Memory in RAM for what channel statistics need of the card: queries and first rows. */
static lk_status reserve_first(struct lk_prefill *p, lk_err *err) {
    struct lk_prefill_card *card = &p->card;
    const struct lk_hparams *hp = &p->net->hp;
    size_t d = (size_t)(p->job.heads.d + hp->d_rope);
    size_t q = observes(p) ? LK_PREFILL_CHUNK * (size_t)hp->n_head * d * sizeof(float) : 0;
    bool ok = reserve(p, (void **)&card->q, &card->q_size, q);
    for (int side = 0; side < 2 && ok; side++) {
        size_t row = lk_prefill_card_rows(p, side).stride * sizeof(uint16_t);
        size_t size = (size_t)count_first(p, side) * row;
        ok = reserve(p, (void **)&card->first, &card->first_size, size) &&
             reserve(p, (void **)&card->by_head, &card->by_head_size, size);
    }
    return ok ? LK_OK : lk_fail(err, LK_E_NOMEM, "out of memory for channel statistics");
}

/* Bring the first n rows of K or V here, and make them exact rows. */
static lk_status bring_first(struct lk_prefill *p, struct lk_exact_rows *exact, int side, int n) {
    struct lk_device *device = p->s->rows.device;
    const struct lk_kv *kv = kv_of(p, side);
    struct lk_rows_there rows = lk_prefill_card_rows(p, side);
    size_t head = kv->d_head * sizeof(uint16_t), width = kv->n_head * head,
           stride = rows.stride * sizeof(uint16_t);
    lk_status status = device->call->download(device, p->card.first, rows.at,
                                              (size_t)(n - 1) * stride + width, NULL);
    if (status) return status;
    for (int h = 0; h < kv->n_head; h++)
        for (int row = 0; row < n; row++)
            memcpy(p->card.by_head + ((size_t)h * n + row) * head,
                   p->card.first + row * stride + h * head, head);
    exact->rows = p->card.by_head;
    wrap_rows(exact, kv, n);
    exact->kv.n_tok = exact->kv.count[0].rows = n;
    return LK_OK;
}

/* Encode K or V of all sessions and planned checkpoints. */
static void encode_there(struct lk_prefill *p, int side) {
    const struct lk_checkpoints *c = &p->s->checkpoints;
    struct lk_rows_there rows = lk_prefill_card_rows(p, side);
    struct lk_exact_rows first;
    int n = (int)count_first(p, side), layer = p->job.index;
    lk_status status = n > 0 ? bring_first(p, &first, side, n) : LK_OK;
    for (size_t i = 0; i < p->n_session; i++) {
        struct lk_cache *cache = p->session[i]->cache;
        bool needs = lk_cache_needs_first(cache, layer, side, (int64_t)p->n_tok) > 0;
        lk_arena_note(&cache->pool.arena, status);
        if (!status) lk_cache_encode_there(cache, layer, side, rows, needs ? &first.kv : NULL);
    }
    for (int i = 0; i < c->n_planned && !status; i++)
        lk_cache_encode_part(c->planned[i].cache, p->s->cache, layer, side, 0, rows, NULL);
}

/* The queries of a chunk at the beginning of the prompt, for channel statistics. */
static void observe_there(struct lk_prefill *p) {
    struct lk_device *device = p->s->rows.device;
    size_t size = ggml_nbytes(p->job.q);
    lk_status status =
        device->call->download(device, p->card.q, (uint64_t)(uintptr_t)p->job.q->data, size, NULL);
    for (size_t i = 0; i < p->n_session; i++) {
        struct lk_cache *cache = p->session[i]->cache;
        lk_arena_note(&cache->pool.arena, status);
        if (!status)
            lk_cache_observe(cache, p->job.index, p->card.q, (int)p->card.n, p->net->hp.n_head);
    }
}

/* The commands after a chunk. */
static void issue_commands(void *user) {
    struct lk_prefill *p = user;
    lk_card_follow(&p->s->pass, true);
    if (p->job.q) observe_there(p);
    for (int side = 0; side < 2 && p->at + p->card.n == p->n_tok; side++) encode_there(p, side);
    lk_card_follow(&p->s->pass, false);
}

/* After all nodes of the chunk on the card. */
static void add_commands(struct lk_prefill *p, const struct lk_qkv *pre, size_t at, size_t n) {
    bool observed = has_rows(p) && at + n <= LK_PREFILL_CHUNK && observes(p);
    p->job.q = NULL;
    p->card.n = n;
    if (!observed && (!has_rows(p) || at + n < p->n_tok)) return;
    lk_graph_command(&p->graph, issue_commands, p);
    if (observed) p->job.q = lk_graph_use(&p->graph, pre->q);
}

/* The chunk's attention. After the last chunk, the layer's rows go to the caches. */
static struct ggml_tensor *chunk_attention(struct lk_prefill *p, const struct lk_qkv *pre,
                                           bool last_chunk) {
    if (!p->job.stores) return lk_attention_nodes(p->graph.ctx, &p->job, pre, pre->q);
    struct ggml_tensor *rows[] = {pre->k, pre->v, pre->q};
    struct ggml_tensor *stored = lk_graph_effect(p->graph.ctx, store_node, rows, 3, p);
    ggml_build_forward_expand(p->graph.graph, stored);
    bool selects = p->s->cache->kv[p->job.index][LK_K].evict, replay = p->at >= p->n_tok;
    struct ggml_tensor *ready = stored, *attn = NULL;
    if (replay || (last_chunk && selects)) /* the policy uses the attention of the whole prompt */
        ready = attn = lk_attention_nodes(p->graph.ctx, &p->job, pre, stored);
    if (last_chunk && replay) ready = lk_graph_effect(p->graph.ctx, forget_node, &ready, 1, p);
    if (last_chunk && selects) ready = lk_graph_effect(p->graph.ctx, select_node, &ready, 1, p);
    if (last_chunk)
        ggml_build_forward_expand(p->graph.graph,
                                  lk_graph_effect(p->graph.ctx, encode_node, &ready, 1, p));
    return attn ? attn : lk_attention_nodes(p->graph.ctx, &p->job, pre, stored);
}

/* The recurrence or the attention of a layer, by the CPU. */
static struct ggml_tensor *attend_in_ram(struct lk_prefill *p, int layer, struct lk_qkv *pre,
                                         bool last_chunk) {
    struct lk_graph *g = &p->graph;
    lk_pre_to_cpu(g, p->net, layer, g->tok, pre);
    return p->net->hp.is_recurrent[layer] ? lk_recurrence_nodes(g->ctx, &p->job, pre)
                                          : chunk_attention(p, pre, last_chunk);
}

/* Tokens [at, at + n) through `layer`: x_in -> x_out, or -> the last token's logits after the last
 * layer. Earlier chunks of the last layer then compute only K and V, if no layer that predicts
 * further tokens follows. */
static lk_status build_chunk(struct lk_prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    bool last_layer = layer == hp->n_layer - 1, last_chunk = at + n == p->n_tok;
    bool there = lk_prefill_is_there(p, layer), replay = at >= p->n_tok;
    lk_graph_set_device(g, p->s->model, 1);
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status) return status;
    if (!there) g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, n);
    g->pos = lk_graph_input(g, n);
    if (!there) ggml_set_input(g->x_in);
    if (p->net->family->token_input) g->tok = lk_graph_input(g, n);
    struct lk_qkv pre;
    struct ggml_tensor *attn, *x = NULL, *logits = NULL;
    if (there) {
        attn = lk_prefill_card_attention(p, layer, at, n, &pre);
    } else {
        pre = lk_pre_nodes(g, p->net, layer, g->x_in, g->pos);
        attn = lk_net_recurs_there(p->net, layer)
                   ? lk_recurrent_there_nodes(g, p->s, layer, &pre, 0, (int)n, false)
                   : attend_in_ram(p, layer, &pre, at + n == lk_prefill_end(p));
    }
    if (hp->is_recurrent[layer] || replay)
        ggml_build_forward_expand(g->graph, attn); /* for its effect */
    bool goes_on = !last_layer || p->embedding;    /* x of all tokens is needed */
    bool stays = there && !last_layer;
    if (goes_on || last_chunk) x = lk_post_nodes(g, p->net, layer, &pre, attn);
    if (last_layer && p->embedding) x = p->net->family->norm(p->net, g->ctx, x);
    if (stays)
        lk_prefill_card_keep(p, x, at, n);
    else if (goes_on)
        ggml_build_forward_expand(g->graph, x);
    if (last_layer && last_chunk && !p->embedding) {
        struct ggml_tensor *row =
            ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n - 1) * x->nb[1]);
        logits = p->net->family->head(p->net, g->ctx, ggml_cont(g->ctx, row));
        ggml_build_forward_expand(g->graph, logits);
    }
    if (there) add_commands(p, &pre, at, n);
    lk_graph_enter(g, LK_ON_CPU);
    g->x_out = goes_on && !stays ? lk_graph_use(g, x) : NULL;
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
    bool adds = !hp->is_recurrent[layer] && /* which has no place in the cache */
                p->s->cache->evict[p->job.index].adds_scores == (p->at < p->n_tok);
    seq->attn_scores = adds ? p->attn_scores : NULL;
}

lk_status lk_prefill_prepare_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err) {
    if (!lk_net_has(p->net, layer)) return LK_OK;
    lk_status status = build_chunk(p, layer, at, n, err);
    return status ? status : lk_graph_reserve_work(&p->graph, p->s->model, err);
}

/* Bring x of a chunk to where a layer is, if the layer before it has left it elsewhere. */
static void bring_x(struct lk_prefill *p, int layer, size_t at, size_t n) {
    size_t n_embd = (size_t)p->net->hp.n_embd;
    bool there = lk_prefill_is_there(p, layer),
         from_there = lk_prefill_is_there(p, layer > p->net->first_layer ? layer - 1 : layer);
    if (there && !from_there) lk_prefill_card_set_x(p, p->x + at * n_embd, at, n);
    if (!there && from_there) lk_prefill_card_get_x(p, p->x + at * n_embd, at, n);
    if (!there) lk_graph_set(p->graph.x_in, 0, p->x + at * n_embd, n * n_embd * sizeof(float));
}

lk_status lk_prefill_compute_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    if (!lk_net_has(p->net, layer)) return LK_OK;
    bring_x(p, layer, at, n);
    if (g->tok) lk_graph_set(g->tok, 0, lk_prefill_tok(p, at), n * sizeof *p->tok);
    size_t pos = lk_prefill_pos(p, at);
    lk_graph_set_positions(g, 0, pos, n);
    if (!lk_prefill_is_there(p, layer)) set_sequence(p, layer, pos + n, (int)n);
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
    bool there = lk_prefill_is_there(p, layer);
    p->job = lk_pass_job(&p->s->pass, layer);
    if (there)
        lk_prefill_card_enter(p, layer);
    else
        choose_exact(p);
    if (!p->job.stores) return LK_OK;
    if (p->attn_scores) memset(p->attn_scores, 0, p->scratch.attn_scores);
    if (!has_rows(p)) return LK_OK;
    lk_status status = alloc_rows(p, err);
    return status || !there ? status : reserve_first(p, err);
}

void lk_prefill_choose_layers(struct lk_prefill *p) {
    for (int layer = 0; layer < p->layer; layer++) {
        p->job = lk_pass_job(&p->s->pass, layer);
        choose_exact(p);
    }
}

/* ---- rows of another session ---- */

struct recode {
    struct lk_prefill *p;
    const struct lk_cache *from;
};

/* Copies the rows that the other cache holds to their places among the exact rows. */
static void copy_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    const struct recode *r = userdata;
    const struct lk_prefill *p = r->p;
    int n_head = p->job.heads.n_kv;
    for (int i = ith; i < 2 * n_head; i += nth) {
        int side = i / n_head, head = i % n_head;
        struct lk_exact_rows *exact = &p->exact[side];
        const struct lk_kv *kv = &r->from->kv[p->job.index][side], *to = kv_of(p, side);
        size_t stride = lk_kv_width(kv);
        struct lk_part part = {&lk_codec_f16, side, kv->d_head, (int)p->n_tok, NULL};
        float *x = to->rows + (size_t)head * kv->d_head; /* scratch of this head */
        char *block = (char *)exact->rows + head * exact->kv.level[0].head_bytes;
        for (int64_t pos = kv->first, n; pos < kv->n_tok; pos += n) {
            n = kv->n_tok - pos < LK_MAX_MOVE ? kv->n_tok - pos : LK_MAX_MOVE;
            lk_kv_read_positions(kv, pos, pos + n, head, r->from->kernels, x, stride);
            p->s->model->kernels->encode(&part, block, (int)pos, (int)n, x, stride);
        }
    }
}

/* Encodes them. */
static void recode_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    (void)dst;
    const struct recode *r = userdata;
    const struct lk_prefill *p = r->p;
    int n_head = p->job.heads.n_kv;
    for (int i = ith; i < 2 * n_head; i += nth)
        lk_cache_encode_calibrated(p->s->cache, p->job.index, i / n_head, i % n_head,
                                   &p->exact[i / n_head].kv);
}

lk_status lk_prefill_recode_layer(struct lk_prefill *p, const struct lk_cache *from,
                                  const struct lk_cache *calibrated, lk_err *err) {
    struct recode r = {p, from};
    struct lk_graph *g = &p->graph;
    struct lk_kv *kv = p->s->cache->kv[p->job.index];
    for (int side = 0; side < 2; side++) {
        p->exact[side].kv.n_tok = p->exact[side].kv.count[0].rows = (int64_t)p->n_tok;
        if (kv[side].equalizer[0].sigma)
            lk_equalizer_copy(&kv[side].equalizer[0],
                              &calibrated->kv[p->job.index][side].equalizer[0]);
    }
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status) return status;
    g->x_in = ggml_new_tensor_1d(g->ctx, GGML_TYPE_F32, 1);
    ggml_set_input(g->x_in);
    struct ggml_tensor *copied = lk_graph_effect(g->ctx, copy_node, &g->x_in, 1, &r);
    g->x_out = lk_graph_effect(g->ctx, recode_node, &copied, 1, &r);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, &p->s->ledger, err);
    return status ? status : lk_graph_run(g, p->s->model, err);
}
