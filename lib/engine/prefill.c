/* Exact prefill, layer by layer.
 *
 * All tokens of the prompt pass one layer before the next one starts, so only one layer's exact K
 * and V exist at a time. If later layers attend to them, those of two layers do: the last one with
 * a window and the last one without. The prompt attends to itself exactly and is compressed
 * afterwards (the "lazy approximation" of TALE). Peak memory: the compressed caches, the exact f16
 * rows of one or two layers, and the hidden states of all tokens.
 *
 *     run_layers   prepare -> agree -> run_layer, layer by layer
 *     run_layer    prepare the layer -> agree -> its chunks: prepare -> agree -> compute
 *
 * After an agreement, computing needs no more memory; what other processes hold, or wait for, is
 * exchanged there (operation.h).
 *
 * Layers on a card that has the sessions' rows attend there (prefill_card.h): hidden states and
 * exact rows are in its memory. Others go through RAM.
 *
 * Between any two chunks the prefill of a session can be cut short and go on later, bit for bit:
 * all that the next chunk needs is in struct lk_prefill and in the session (prefill_state.h).
 *
 * For a policy by replay, the chunks of the replay (replay.h) follow the prompt in each layer.
 *
 * Recipes that are eager go through the cache instead, in chunks (batch.h). */
#include "engine/prefill.h"

#include "engine/batch.h"
#include "engine/prefill_layer.h"
#include "lowkey_serve.h"

#include <math.h>
#include <string.h>

/* Token embeddings of tokens [at, at + n), into x. */
static lk_status embed_chunk(struct lk_prefill *p, size_t at, size_t n, lk_err *err) {
    struct lk_graph *g = &p->graph;
    lk_status status = lk_graph_begin(g, LK_PREFILL_NODES, &p->s->ledger, err);
    if (status) return status;
    g->tok = lk_graph_input(g, n);
    g->pos = lk_graph_input(g, n);
    g->x_out = p->net->family->embed(p->net, g->ctx, g->tok, g->pos);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, &p->s->ledger, err);
    if (status) return status;
    lk_graph_set(g->tok, 0, lk_prefill_tok(p, at), n * sizeof *p->tok);
    lk_graph_set_positions(g, 0, lk_prefill_pos(p, at), n);
    status = lk_graph_run(g, p->s->model, err);
    if (status) return status;
    if (lk_prefill_is_there(p, p->net->first_layer))
        lk_prefill_card_set_x(p, g->x_out->data, at, n);
    else
        lk_graph_get(g->x_out, 0, p->x + at * p->net->hp.n_embd, ggml_nbytes(g->x_out));
    return LK_OK;
}

/* ---- the prompt ---- */

/* Number of tokens of the chunk that starts at `at`. States of recurrent layers exist only at the
 * end of a chunk, so chunks of such models also end at the planned checkpoints. */
static size_t chunk_length(const struct lk_prefill *p, size_t at) {
    const struct lk_checkpoints *c = &p->s->checkpoints;
    size_t start = at < p->n_tok ? 0 : p->n_tok,
           last = at < p->n_tok ? p->n_tok : lk_prefill_end(p);
    size_t end = start + (at - start) / LK_PREFILL_CHUNK * LK_PREFILL_CHUNK + LK_PREFILL_CHUNK;
    if (end > last) end = last;
    for (int i = 0; p->s->recurrent && i < c->n_planned; i++)
        if (c->planned[i].n_tok > at && c->planned[i].n_tok < end) end = c->planned[i].n_tok;
    return end - at;
}

/* Copy the state of a recurrent layer after n_tok tokens to the checkpoint planned there. */
static lk_status keep_state(struct lk_prefill *p, int layer, size_t n_tok, lk_err *err) {
    const struct lk_checkpoints *c = &p->s->checkpoints;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < c->n_planned; i++)
        if (c->planned[i].n_tok == n_tok)
            status = lk_recurrent_get_layer(p->s, layer, c->planned[i].states, err);
    return status;
}

/* ---- all layers ---- */

/* Before and after the layers that are held here, the hidden states of the tokens from `first` on
 * are exchanged. */
static lk_status exchange_hidden(struct lk_prefill *p, int layer, size_t first, lk_err *err) {
    const struct lk_model *model = p->s->model;
    size_t n_embd = p->net->hp.n_embd, n = (p->n_tok - first) * n_embd;
    bool ok = true;
    if (lk_net_has_all(p->net)) return LK_OK;
    float *x = p->x + first * n_embd;
    if (layer + 1 == p->net->first_layer) ok = lk_receive_hidden(model, x, n);
    if (layer + 1 == p->net->end_layer && layer + 1 < p->net->hp.n_layer)
        ok = lk_send_hidden(model, x, n);
    return ok ? LK_OK : lk_fail_lost(err);
}

/* Give all sessions the logits, wherever they were computed. */
static lk_status take_logits(struct lk_prefill *p, lk_err *err) {
    size_t n = (size_t)p->net->hp.n_vocab;
    float *first = p->session[0]->logits;
    if (p->graph.logits) lk_graph_get(p->graph.logits, 0, first, n * sizeof *first);
    if (!lk_bring_logits(p->s->model, first, n)) return lk_fail_lost(err);
    for (size_t i = 1; i < p->n_session; i++)
        memcpy(p->session[i]->logits, first, n * sizeof *first);
    return LK_OK;
}

/* Memory for the prompt, and its embeddings, which need nothing of other processes. For a prefill
 * that goes on: memory of the pass, which other evaluations may have used. */
static lk_status prepare(struct lk_prefill *p, lk_err *err) {
    struct lk_pass *pass = &p->s->pass;
    lk_status status = p->has_begun ? LK_OK : lk_prefill_set_replay(p, err);
    size_t n_all = lk_prefill_end(p);
    if (!status) status = lk_pass_reset(pass, 1, err);
    if (!status)
        lk_pass_add(pass, p->s, n_all < LK_PREFILL_CHUNK ? (int)n_all : LK_PREFILL_CHUNK, 0);
    if (!status) status = lk_pass_reserve_attn(pass, err);
    if (!status) status = lk_recurrent_there_prepare(p->s, err);
    if (p->has_begun) return status; /* it goes on */
    p->card.used = lk_prefill_card_fits(p);
    for (size_t i = 0; !status && i < p->n_session; i++)
        status = lk_prefill_check_limit(p, p->session[i], err);
    if (!status) status = lk_prefill_alloc(p, err);
    size_t n_embedded = p->net->first_layer == 0 ? n_all : 0;
    for (size_t at = 0, n; !status && at < n_embedded; at += n)
        status = embed_chunk(p, at, n = chunk_length(p, at), err);
    p->has_begun = !status;
    return status;
}

/* The next chunk through the current layer. The logits are taken at once: a prefill that is cut
 * short afterwards keeps them, but not the graph. */
static lk_status run_chunk(struct lk_prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    const struct lk_hparams *hp = &p->net->hp;
    size_t n = chunk_length(p, p->at);
    lk_status status = LK_OK;
    if (s->cancelled && atomic_exchange(&s->cancelled, 0))
        status = lk_fail(err, LK_E_CANCELLED, "cancelled");
    else
        status = lk_prefill_prepare_chunk(p, p->layer, p->at, n, err);
    status = lk_agree(s->model, status, err);
    if (!status) status = lk_prefill_compute_chunk(p, p->layer, p->at, n, err);
    if (status) return status;
    p->at += n;
    if (hp->is_recurrent[p->layer] && lk_net_has(p->net, p->layer))
        status = keep_state(p, p->layer, p->at, err);
    bool is_last = p->layer == hp->n_layer - 1 && p->at == p->n_tok;
    return !status && is_last && !p->embedding ? take_logits(p, err) : status;
}

/* The rest of the tokens through the current layer, and on to the next one. All processes get the
 * same result. */
static lk_status run_layer(struct lk_prefill *p, lk_err *err) {
    struct lk_session *s = p->s;
    uint64_t n_layer = (uint64_t)p->net->hp.n_layer, n_all = lk_prefill_end(p);
    lk_status status = p->is_prepared ? LK_OK : lk_prefill_prepare_layer(p, p->layer, err);
    if (status) return status;
    /* Only K and V of earlier tokens matter from there on, and this layer has none. */
    size_t first =
        p->job.stores || p->embedding ? 0 : (p->n_tok - 1) / LK_PREFILL_CHUNK * LK_PREFILL_CHUNK;
    if (!p->is_prepared) p->at = first;
    p->is_prepared = true;
    while (p->at < n_all) {
        status = run_chunk(p, err);
        if (!status && !lk_report(s->model, s->opts.progress, s->opts.user,
                                  (uint64_t)p->layer * n_all + p->at, n_layer * n_all))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled during prefill");
        if (status) return status;
    }
    status = exchange_hidden(p, p->layer, first, err);
    p->layer++;
    p->is_prepared = false;
    return status;
}

/* Leave the sessions as if each had evaluated the prompt. */
static lk_status finish(struct lk_prefill *p, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; i < p->n_session; i++) {
        struct lk_session *s = p->session[i];
        if (s->tok != p->tok) memcpy(s->tok, p->tok, p->n_tok * sizeof *p->tok);
        if (i > 0 && !status) status = lk_recurrent_copy(s, p->s, err);
        s->n_logits = 1;
        s->n_tok = p->n_tok;
    }
    lk_checkpoints_keep_planned(p->s);
    return lk_agree(p->s->model, status, err);
}

/* The layers that are left, for all sessions of p. */
static lk_status run_layers(struct lk_prefill *p, lk_err *err) {
    lk_status status = lk_agree(p->s->model, prepare(p, err), err);
    while (!status && p->layer < p->net->hp.n_layer) status = run_layer(p, err);
    if (!status && p->embedding)
        lk_pool_rows(p->x, p->n_tok, (size_t)p->net->hp.n_embd, p->pooling, p->embedding);
    else if (!status)
        status = finish(p, err);
    return status;
}

/* Compute the prompt once for all sessions of p. Only the first one may select rows. */
static lk_status prefill_group(struct lk_prefill *p, lk_err *err) {
    lk_checkpoints_open_planned(p->s);
    lk_status status = run_layers(p, err);
    lk_prefill_free(p);
    return status;
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
    lk_status status = lk_check_alone(s->model, err);
    if (!status) status = lk_session_check_text(s, tok, n_tok, err);
    if (status) return status;
    lk_session_drop_tokens(s);
    struct lk_prefill p = {.s = s,
                           .session = &s,
                           .n_session = 1,
                           .net = net,
                           .n_tok = n_tok,
                           .tok = tok,
                           .embedding = out,
                           .pooling = pooling};
    status = lk_session_reserve_absorb(s, 1, err);
    if (!status) status = prefill_group(&p, err);
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

static struct lk_prefill prefill_of(const struct lk_op *op, struct lk_session *const *session,
                                    size_t n) {
    return (struct lk_prefill){.s = session[0],
                               .session = session,
                               .n_session = n,
                               .net = session[0]->model->net,
                               .n_tok = op->n,
                               .tok = op->tok};
}

/* Memory of a session that does not depend on the layers. */
static lk_status prepare_session(struct lk_session *s, size_t n_tok, lk_err *err) {
    if (n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "%zu tokens do not fit a context of %d; use a larger context length", n_tok,
                       s->opts.n_ctx);
    lk_status status = lk_session_reserve_logits(s, 1, err);
    return status ? status : lk_session_reserve_absorb(s, 1, err);
}

static lk_status prefill_sessions(struct lk_op *op, lk_err *err) {
    struct lk_session *const *session = op->sessions;
    struct lk_ledger *ledger = &session[0]->ledger;
    size_t n = op->n_session, n_group = 0;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) lk_session_drop_tokens(session[i]);
    for (size_t i = 0; !status && i < n; i++) status = prepare_session(session[i], op->n, err);
    struct lk_session **group = lk_alloc(ledger, LK_FOR_OTHER, n * sizeof *group);
    if (!status && !group) status = lk_fail(err, LK_E_NOMEM, "out of memory for %zu sessions", n);
    status = lk_agree(session[0]->model, status, err);
    size_t selecting = 0; /* the one of the group that selects rows */
    while (selecting < n &&
           (session[selecting]->recipe->eager || !selects_rows(session[selecting])))
        selecting++;
    if (!status && selecting < n) group[n_group++] = session[selecting];
    for (size_t i = 0; !status && i < n; i++)
        if (!selects_rows(session[i]) && !session[i]->recipe->eager) group[n_group++] = session[i];
    if (n_group > 0) {
        struct lk_prefill p = prefill_of(op, group, n_group);
        status = prefill_group(&p, err);
    }
    for (size_t i = 0; !status && i < n; i++) {
        struct lk_prefill p = prefill_of(op, &session[i], 1);
        if (session[i]->recipe->eager)
            status = lk_session_extend(session[i], op->tok, op->n, err);
        else if (i != selecting && selects_rows(session[i]))
            status = prefill_group(&p, err);
    }
    for (size_t i = 0; !status && i < n; i++) status = lk_device_settle(session[i], err);
    lk_release(ledger, LK_FOR_OTHER, group, n * sizeof *group);
    for (size_t i = 0; i < n; i++) {
        if (status) lk_session_drop_tokens(session[i]);
        lk_cache_trim(session[i]->cache);
    }
    return status;
}

lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok,
                         size_t n_tok, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_PREFILL,
                       .run = prefill_sessions,
                       .session = session[0],
                       .sessions = session,
                       .n_session = n,
                       .tok = tok,
                       .n = n_tok};
    return lk_op_run(session[0]->model, &op, err);
}

/* ---- one prompt that can be cut short ---- */

/* A prefill of the session, which is empty, before its first layer. */
static lk_status begin(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    lk_status status = prepare_session(s, n_tok, err);
    if (!status) status = lk_prefill_suspend_new(s, n_tok, err);
    status = lk_agree(s->model, status, err);
    if (status) return status;
    memcpy(s->tok, tok, n_tok * sizeof *tok);
    lk_checkpoints_open_planned(s);
    return LK_OK;
}

lk_status lk_prefill_resume(struct lk_session *s, lk_err *err) {
    lk_status status = run_layers(s->suspended, err);
    lk_err why;
    lk_status fault = lk_agree(s->model, lk_device_settle(s, &why), &why);
    lk_graph_free(&s->suspended->graph, &s->ledger);
    if (status == LK_E_CANCELLED && !fault) return status;
    if (!status && fault) status = lk_fail(err, fault, "%s", why.msg);
    lk_prefill_drop(s);
    if (status) lk_session_drop_tokens(s);
    lk_cache_trim(s->cache);
    return status;
}

lk_status lk_prefill_one(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    if (s->recipe->eager) return lk_session_extend(s, tok, n_tok, err);
    lk_status status = begin(s, tok, n_tok, err);
    if (!status) return lk_prefill_resume(s, err);
    lk_session_drop_tokens(s);
    return status;
}

/* ---- a prompt that another session has computed ---- */

static bool can_recode(const struct lk_session *s, const struct lk_session *calibrated) {
    if (s->recipe->eager || s->absorb || selects_rows(s) || s->rows.device ||
        s->cache->shape.place.share.n > 1)
        return false;
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(s->cache, k), *of = lk_cache_kv(calibrated->cache, k);
        if (kv->equalizer[1].sigma) return false;
        if (kv->equalizer[0].sigma &&
            (!of->equalizer[0].calibrated || kv->side == LK_V ||
             lk_level_sinks(kv->rule, kv->n_level) != lk_level_sinks(of->rule, of->n_level)))
            return false;
    }
    return true;
}

static lk_status recode_layers(struct lk_prefill *p, const struct lk_session *exact,
                               const struct lk_session *calibrated, lk_err *err) {
    struct lk_pass *pass = &p->s->pass;
    lk_status status = lk_pass_reset(pass, 1, err);
    if (!status) lk_pass_add(pass, p->s, 1, 0);
    if (!status) status = lk_prefill_alloc_rows(p, err);
    for (int layer = 0; !status && layer < p->net->hp.n_layer; layer++) {
        status = lk_prefill_prepare_layer(p, layer, err);
        if (!status && p->job.stores && !p->net->hp.is_recurrent[layer])
            status = lk_prefill_recode_layer(p, exact->cache, calibrated->cache, err);
    }
    return status;
}

lk_status lk_prefill_recode(struct lk_session *s, const struct lk_session *exact,
                            const struct lk_session *calibrated, lk_err *err) {
    struct lk_prefill p = {.s = s,
                           .session = &s,
                           .n_session = 1,
                           .net = s->model->net,
                           .n_tok = exact->n_tok,
                           .tok = exact->tok};
    if (!can_recode(s, calibrated))
        return lk_fail(err, LK_E_UNSUPPORTED, "'%.80s' cannot be made of a prompt's rows",
                       lk_recipe_text(s->recipe));
    lk_session_drop_tokens(s);
    lk_status status = prepare_session(s, p.n_tok, err);
    if (!status) status = recode_layers(&p, exact, calibrated, err);
    if (status) {
        lk_session_drop_tokens(s);
    } else {
        if (s->recurrent) memcpy(s->recurrent, exact->recurrent, lk_recurrent_bytes(&p.net->hp));
        memcpy(s->tok, exact->tok, p.n_tok * sizeof *s->tok);
        s->n_tok = p.n_tok;
    }
    lk_prefill_free(&p);
    lk_cache_trim(s->cache);
    return status;
}

/* ---- pooling of hidden states ---- */

void lk_pool_rows(const float *x, size_t n_tok, size_t n_embd, lk_pooling pooling, float *out) {
    enum { BLOCK = 64 }; /* channels that are summed at once */
    size_t first = pooling == LK_POOLING_MEAN ? 0 : n_tok - 1;
    double length = 0;
    for (size_t c = 0; c < n_embd; c += BLOCK) {
        double sum[BLOCK] = {0};
        size_t n = n_embd - c < BLOCK ? n_embd - c : BLOCK;
        for (size_t row = first; row < n_tok; row++)
            for (size_t k = 0; k < n; k++) sum[k] += x[row * n_embd + c + k];
        for (size_t k = 0; k < n; k++) {
            out[c + k] = (float)(sum[k] / (double)(n_tok - first));
            length += (double)out[c + k] * out[c + k];
        }
    }
    for (size_t c = 0; length > 0 && c < n_embd; c++) out[c] = (float)(out[c] / sqrt(length));
}
