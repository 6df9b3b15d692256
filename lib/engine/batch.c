/* Tokens of one or several sessions, evaluated in one pass over the weights. */
#include "engine/engine.h"

#include <string.h>

lk_status lk_batch_new(lk_batch **out, lk_model *model, lk_err *err) {
    struct lk_batch *batch = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *batch);
    if (!batch) return lk_fail(err, LK_E_NOMEM, "no memory for a batch");
    lk_status status = lk_pass_open(&batch->pass, model, &batch->ledger, err);
    if (status != LK_OK)
        lk_release(&model->ledger, LK_FOR_OTHER, batch, sizeof *batch);
    else
        *out = batch;
    return status;
}

void lk_batch_free(lk_batch *batch) {
    if (!batch) return;
    struct lk_model *model = batch->pass.model;
    lk_pass_close(&batch->pass);
    lk_release(&model->ledger, LK_FOR_OTHER, batch, sizeof *batch);
}

uint64_t lk_batch_scratch_bytes(const lk_batch *batch) {
    return lk_ledger_bytes(&batch->ledger, LK_FOR_SCRATCH);
}

static int n_out_of(const lk_batch_item *item) { return item->all ? (int)item->n_tok : 1; }

/* What must hold of the items together. */
static lk_status check_items(const struct lk_pass *pass, const lk_batch_item *item, size_t n,
                             lk_err *err) {
    size_t n_row = 0;
    if (n < 1) return lk_fail(err, LK_E_ARG, "a batch needs at least one session");
    for (size_t i = 0; i < n; i++) {
        if (item[i].session->model != pass->model)
            return lk_fail(err, LK_E_ARG, "session %zu of the batch is of another model", i);
        for (size_t j = 0; j < i; j++)
            if (item[j].session == item[i].session)
                return lk_fail(err, LK_E_ARG, "sessions %zu and %zu of the batch are the same", j,
                               i);
        if (item[i].n_tok <= LK_EVAL_MAX) n_row += item[i].n_tok; /* others are left out */
    }
    if (n_row > LK_BATCH_MAX)
        return lk_fail(err, LK_E_ARG, "%zu tokens in a batch; give %d at most", n_row,
                       LK_BATCH_MAX);
    return LK_OK;
}

/* Everything of a session's own that its tokens will need. */
static lk_status prepare(lk_batch_item *item) {
    struct lk_session *s = item->session;
    lk_status status = lk_session_check(s, item->tok, item->n_tok, &item->err);
    if (status != LK_OK) return status;
    status = lk_session_reserve_logits(s, n_out_of(item), &item->err);
    if (status == LK_OK) status = lk_session_reserve_absorb(s, (int)item->n_tok, &item->err);
    if (status != LK_OK) return status;
    if (item->n_tok == 1 && s->cache->reserved > 0) {
        s->cache->reserved--;
        return LK_OK;
    }
    return lk_cache_prepare(s->cache, 0, s->cache->shape.n_layer, (int64_t)item->n_tok,
                            (int64_t)item->n_tok, &item->err);
}

/* Tokens, positions and the rows that have logits, into the graph. */
static void set_inputs(struct lk_pass *pass, const lk_batch_item *item, size_t n) {
    struct lk_graph *g = &pass->graph;
    int32_t *out = g->out ? g->out->data : NULL;
    const struct lk_seq *seq = pass->seq;
    for (size_t i = 0; i < n; i++) {
        if (item[i].err.code != LK_OK) continue;
        memcpy((int32_t *)g->tok->data + seq->row, item[i].tok,
               item[i].n_tok * sizeof *item[i].tok);
        lk_graph_set_positions(g, seq->row, item[i].session->n_tok, item[i].n_tok);
        for (int end = seq->row + seq->n_tok, row = end - n_out_of(&item[i]); out && row < end;
             row++)
            *out++ = row;
        seq++;
    }
}

/* After the pass: a session has its tokens and logits, or, where its layers may stand at different tokens,
 * nothing. */
static void finish(lk_batch_item *item, const struct lk_seq *seq, const float *logits) {
    struct lk_session *s = item->session;
    if (seq->failed) {
        lk_session_clear(s);
        lk_fail(&item->err, seq->failed, "no memory for the cache's next block");
        return;
    }
    s->n_logits = n_out_of(item);
    memcpy(s->logits, logits, (size_t)s->n_logits * s->model->net->hp.n_vocab * sizeof *logits);
    memcpy(s->tok + s->n_tok, item->tok, item->n_tok * sizeof *item->tok);
    s->n_tok += item->n_tok;
    if (s->cache->reserved == 0) lk_cache_trim(s->cache); /* blocks that ageing set free */
}

/* How far a pass had come with its sessions. */
enum reached { UNTOUCHED, PREPARED, COMPUTED };

/* No item was evaluated. */
static lk_status give_up(lk_batch_item *item, size_t n, enum reached reached, const lk_err *why,
                         lk_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (item[i].err.code != LK_OK) continue;
        if (reached == PREPARED) lk_cache_trim(item[i].session->cache);
        if (reached == COMPUTED) lk_session_clear(item[i].session);
        item[i].err = *why;
    }
    return lk_fail(err, why->code, "%s", why->msg);
}

lk_status lk_pass_eval(struct lk_pass *pass, lk_batch_item *item, size_t n, lk_err *err) {
    lk_err why;
    int n_row = 0, n_out = 0;
    for (size_t i = 0; i < n; i++) item[i].err = (lk_err){0};
    if (check_items(pass, item, n, &why) != LK_OK || lk_pass_begin(pass, n, &why) != LK_OK)
        return give_up(item, n, UNTOUCHED, &why, err);
    for (size_t i = 0; i < n; i++) {
        if (prepare(&item[i]) != LK_OK) continue;
        lk_pass_add(pass, item[i].session, (int)item[i].n_tok);
        n_row += (int)item[i].n_tok;
        n_out += n_out_of(&item[i]);
    }
    if (n_row == 0) return LK_OK; /* each item has said why */
    if (lk_pass_reserve(pass, &why) != LK_OK || lk_pass_build(pass, n_row, n_out, &why) != LK_OK)
        return give_up(item, n, PREPARED, &why, err);
    set_inputs(pass, item, n);
    if (lk_graph_run(&pass->graph, pass->model, &why) != LK_OK)
        return give_up(item, n, COMPUTED, &why, err);
    const float *logits = pass->graph.logits->data;
    const struct lk_seq *seq = pass->seq;
    for (size_t i = 0; i < n; i++) {
        if (item[i].err.code != LK_OK) continue;
        finish(&item[i], seq++, logits);
        logits += (size_t)n_out_of(&item[i]) * pass->model->net->hp.n_vocab;
    }
    return LK_OK;
}

lk_status lk_batch_eval(lk_batch *batch, lk_batch_item *item, size_t n, lk_err *err) {
    return lk_pass_eval(&batch->pass, item, n, err);
}
