/* Reading a prompt exactly, layer by layer.
 *
 * All tokens pass one layer before the next begins, so only one layer's exact K and V exist at a
 * time (TALE's lazy approximation: a prompt attends to itself exactly, and is compressed after).
 * Peak memory: the compressed cache, one layer's exact f16 rows, and the hidden states. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 512, NODES = 2 * LK_LAYER_NODES };

struct prefill {
    struct lk_session    *s;
    const struct lk_net  *net;
    size_t                n_tok;
    float                *x;      /* [n_tok][n_embd] hidden states                        */
    size_t                x_size;
    ggml_fp16_t          *kv[2];  /* K, V of the layer at hand: [n_tok][n_head_kv][d_head] */
    size_t                kv_size;
    ggml_backend_buffer_t kv_buffer[2];
    struct lk_graph       graph;
};

static void release(struct prefill *p) {
    struct lk_ledger *ledger = &p->s->ledger;
    lk_graph_free(&p->graph, ledger);
    for (int side = 0; side < 2; side++) {
        if (p->kv_buffer[side]) ggml_backend_buffer_free(p->kv_buffer[side]);
        lk_release(ledger, LK_FOR_SCRATCH, p->kv[side], p->kv_size);
    }
    lk_release(ledger, LK_FOR_SCRATCH, p->x, p->x_size);
}

static lk_status take(struct prefill *p, lk_err *err) {
    struct lk_ledger *ledger = &p->s->ledger;
    const struct lk_hparams *hp = &p->net->hp;
    p->x_size = p->n_tok * hp->n_embd * sizeof(float);
    p->kv_size = p->n_tok * hp->n_head_kv * hp->d_head * sizeof(ggml_fp16_t);
    p->x = lk_alloc(ledger, LK_FOR_SCRATCH, p->x_size);
    for (int side = 0; side < 2; side++) {
        p->kv[side] = lk_alloc(ledger, LK_FOR_SCRATCH, p->kv_size);
        if (p->kv[side]) p->kv_buffer[side] = ggml_backend_cpu_buffer_from_ptr(p->kv[side], p->kv_size);
    }
    if (p->x && p->kv_buffer[LK_K] && p->kv_buffer[LK_V]) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory to read %zu tokens exactly (%.1f MiB); read them as a stream instead",
                   p->n_tok, (double)(p->x_size + 2 * p->kv_size) / (1 << 20));
}

/* ---- the graph of one chunk in one layer -------------------------------------------------------- */

/* All rows of the layer's exact K or V up to `n`, from row `first`, as [d_head, n - first, n_head_kv]. */
static struct ggml_tensor *exact_rows(const struct prefill *p, struct ggml_tensor *kept, size_t first, size_t n) {
    const struct lk_hparams *hp = &p->net->hp;
    size_t row = (size_t)hp->n_head_kv * hp->d_head * sizeof(ggml_fp16_t);
    return ggml_view_3d(p->graph.ctx, kept, hp->d_head, n - first, hp->n_head_kv, row, hp->d_head * sizeof(ggml_fp16_t), first * row);
}

/* Write the chunk's rows behind the ones before and return a tensor of all rows, ordered after the write. */
static struct ggml_tensor *keep_exact(struct prefill *p, enum lk_side side, struct ggml_tensor *rows, size_t at) {
    const struct lk_hparams *hp = &p->net->hp;
    struct ggml_context *ctx = p->graph.ctx;
    int64_t width = (int64_t)hp->n_head_kv * hp->d_head;
    struct ggml_tensor *all = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, width, p->n_tok);
    all->data = p->kv[side];
    all->buffer = p->kv_buffer[side];
    struct ggml_tensor *place = ggml_view_2d(ctx, all, width, rows->ne[2], all->nb[1], at * all->nb[1]);
    ggml_build_forward_expand(p->graph.graph, ggml_cpy(ctx, ggml_reshape_2d(ctx, rows, width, rows->ne[2]), place));
    return all;
}

static size_t oldest_visible(const struct lk_hparams *hp, int layer, size_t at) {
    bool swa = hp->n_swa > 0 && hp->is_swa[layer];
    return swa && at + 1 > (size_t)hp->n_swa ? at + 1 - hp->n_swa : 0;
}

static struct ggml_tensor *attend(struct prefill *p, int layer, const struct lk_pre *pre, size_t at, size_t n) {
    const struct lk_hparams *hp = &p->net->hp;
    struct ggml_context *ctx = p->graph.ctx;
    struct ggml_tensor *k = keep_exact(p, LK_K, pre->k, at), *v = keep_exact(p, LK_V, pre->v, at);
    size_t first = oldest_visible(hp, layer, at);
    p->graph.mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, at + n - first, n);
    ggml_set_input(p->graph.mask);
    struct ggml_tensor *out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, pre->q, 0, 2, 1, 3), exact_rows(p, k, first, at + n),
                                                  exact_rows(p, v, first, at + n), p->graph.mask, hp->attn_scale, hp->alibi_max_bias, 0.0f);
    return ggml_reshape_2d(ctx, out, (int64_t)hp->n_head * hp->d_head, n);
}

/* Chunk [at, at + n) through `layer`: K and V into the cache, x into x_out, and after the last layer
 * the last token's logits. Earlier chunks of the last layer leave nothing but K and V. */
static lk_status build(struct prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_graph *g = &p->graph;
    bool last_layer = layer == hp->n_layer - 1, last_chunk = at + n == p->n_tok;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, hp->n_embd, n);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    ggml_set_input(g->x_in);
    ggml_set_input(g->pos);
    struct lk_pre pre = p->net->family->pre(p->net, g->ctx, layer, g->x_in, g->pos);
    struct ggml_tensor *rows[] = {pre.k, pre.v, pre.q};
    struct lk_layer_job *job = &p->s->job[layer];
    struct ggml_tensor *stored = ggml_custom_4d(g->ctx, GGML_TYPE_F32, 1, 1, 1, 1, rows, 3, lk_store_node, GGML_N_TASKS_MAX, job);
    ggml_build_forward_expand(g->graph, ggml_custom_4d(g->ctx, GGML_TYPE_F32, 1, 1, 1, 1, &stored, 1, lk_settle_node, GGML_N_TASKS_MAX, job));
    struct ggml_tensor *attn = attend(p, layer, &pre, at, n);
    if (!last_layer || last_chunk) {
        struct ggml_tensor *x = p->net->family->post(p->net, g->ctx, layer, &pre, attn);
        if (last_layer) {
            x = ggml_cont(g->ctx, ggml_view_2d(g->ctx, x, x->ne[0], 1, x->nb[1], (n - 1) * x->nb[1]));
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

static void fill_mask(const struct prefill *p, int layer, size_t at, size_t n) {
    const struct lk_hparams *hp = &p->net->hp;
    if (!p->graph.mask || !p->graph.mask->data) return;
    ggml_fp16_t *mask = p->graph.mask->data;
    size_t first = oldest_visible(hp, layer, at), width = at + n - first;
    ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    for (size_t i = 0; i < n; i++) {
        size_t pos = at + i, oldest = oldest_visible(hp, layer, pos);
        for (size_t j = 0; j < width; j++) {
            size_t key = first + j;
            bool visible = key <= pos && key >= oldest;
            ggml_fp16_t bias = hp->alibi_max_bias > 0 ? ggml_fp32_to_fp16((float)key - (float)pos) : seen;
            mask[i * width + j] = visible ? bias : hidden;
        }
    }
}

static lk_status run_chunk(struct prefill *p, int layer, size_t at, size_t n, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    lk_status status = build(p, layer, at, n, err);
    if (status != LK_OK) return status;
    struct lk_graph *g = &p->graph;
    memcpy(g->x_in->data, p->x + at * hp->n_embd, n * hp->n_embd * sizeof(float));
    lk_graph_set_positions(g, at, n);
    fill_mask(p, layer, at, n);
    p->s->attn.n_tok = (int)n;
    p->s->failed = LK_OK;
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK && p->s->failed) status = lk_fail(err, p->s->failed, "no memory for the cache of layer %d", layer);
    if (status == LK_OK && g->x_out) memcpy(p->x + at * hp->n_embd, g->x_out->data, n * hp->n_embd * sizeof(float));
    return status;
}

static lk_status embed(struct prefill *p, const int32_t *tok, size_t at, size_t n, lk_err *err) {
    struct lk_graph *g = &p->graph;
    lk_status status = lk_graph_begin(g, NODES, &p->s->ledger, err);
    if (status != LK_OK) return status;
    g->tok = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    ggml_set_input(g->tok);
    ggml_set_input(g->pos);
    g->x_out = p->net->family->embed(p->net, g->ctx, g->tok, g->pos);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, &p->s->ledger, err);
    if (status != LK_OK) return status;
    memcpy(g->tok->data, tok + at, n * sizeof *tok);
    lk_graph_set_positions(g, at, n);
    status = lk_graph_run(g, p->s->model, err);
    if (status == LK_OK) memcpy(p->x + at * p->net->hp.n_embd, g->x_out->data, ggml_nbytes(g->x_out));
    return status;
}

/* With a limit, whether the whole prompt will fit is known before its first token is read. */
static lk_status check_limit(const struct prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    const struct lk_hparams *hp = &p->net->hp;
    if (!s->ledger.limit) return LK_OK;
    uint64_t cache, held = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH) + lk_ledger_bytes(&s->ledger, LK_FOR_OTHER);
    lk_status status = lk_cache_foresee(s->recipe, &s->cache->shape, p->n_tok, &cache, err);
    if (status != LK_OK) return status;
    uint64_t exact = p->n_tok * (hp->n_embd * sizeof(float) + 2ull * hp->n_head_kv * hp->d_head * sizeof(ggml_fp16_t));
    if (held + cache + exact <= s->ledger.limit) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "%zu tokens need %.0f MiB (%.0f of them cache), and %.0f are allowed; use a smaller recipe or read them as a stream",
                   p->n_tok, (double)(held + cache + exact) / (1 << 20), (double)cache / (1 << 20), (double)s->ledger.limit / (1 << 20));
}

static lk_status read_all(struct prefill *p, const int32_t *tok, lk_err *err) {
    struct lk_session *s = p->s;
    int n_layer = p->net->hp.n_layer;
    lk_status status = check_limit(p, err);
    if (status == LK_OK) status = take(p, err);
    for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK)
        status = embed(p, tok, at, p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK, err);
    for (int layer = 0; status == LK_OK && layer < n_layer; layer++) {
        status = lk_cache_prepare(s->cache, layer, layer + 1, p->n_tok, CHUNK, err);
        for (size_t at = 0; status == LK_OK && at < p->n_tok; at += CHUNK) {
            size_t n = p->n_tok - at < CHUNK ? p->n_tok - at : CHUNK;
            status = run_chunk(p, layer, at, n, err);
            if (status == LK_OK && s->opts.progress &&
                !s->opts.progress(s->opts.user, (uint64_t)layer * p->n_tok + at + n, (uint64_t)n_layer * p->n_tok))
                status = lk_fail(err, LK_E_CANCELLED, "cancelled while reading the prompt");
        }
    }
    return status;
}

lk_status lk_prefill(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    struct prefill p = {.s = s, .net = s->model->net, .n_tok = n_tok};
    s->n_logits = 0;
    lk_status status = lk_session_want_logits(s, 1, err);
    if (status == LK_OK) status = read_all(&p, tok, err);
    if (status == LK_OK) {
        memcpy(s->logits, p.graph.logits->data, ggml_nbytes(p.graph.logits));
        memcpy(s->tok, tok, n_tok * sizeof *tok);
        s->n_logits = 1;
        s->n_tok = n_tok;
    } else {
        lk_cache_clear(s->cache);
        s->n_tok = 0;
    }
    lk_cache_trim(s->cache);
    release(&p);
    return status;
}
