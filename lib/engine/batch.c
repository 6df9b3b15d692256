/* Evaluation of tokens of one or several sessions in one pass over the weights, and of a text in
 * chunks through the cache.
 *
 *     prepare   find all memory: of each entry's session, and of the pass
 *     agree     on the entries that failed, and on the pass, with the other processes, if any
 *     compute   the pass, for which no step needs memory */
#include "engine/batch.h"

#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "recipe/recipe_levels.h"

#include <string.h>

lk_status lk_batch_new(lk_batch **out, lk_model *model, lk_err *err) {
    struct lk_batch *batch = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *batch);
    if (!batch) return lk_fail(err, LK_E_NOMEM, "out of memory for a batch");
    lk_status status = lk_pass_init(&batch->pass, model, &batch->ledger, err);
    if (status)
        lk_release(&model->ledger, LK_FOR_OTHER, batch, sizeof *batch);
    else
        *out = batch;
    return status;
}

void lk_batch_free(lk_batch *batch) {
    if (!batch) return;
    struct lk_model *model = batch->pass.model;
    lk_pass_free(&batch->pass);
    lk_release(&model->ledger, LK_FOR_OTHER, batch, sizeof *batch);
}

uint64_t lk_batch_scratch_bytes(const lk_batch *batch) {
    return lk_ledger_bytes(&batch->ledger, LK_FOR_SCRATCH);
}

/* What must hold for the entries together. */
static lk_status check_entries(const struct lk_pass *pass, const lk_batch_entry *entry, size_t n,
                               lk_err *err) {
    size_t n_row = 0;
    if (n < 1) return lk_fail(err, LK_E_ARG, "a batch needs at least one session");
    for (size_t i = 0; i < n; i++) {
        if (entry[i].session->model != pass->model)
            return lk_fail(err, LK_E_ARG, "session %zu of the batch belongs to another model", i);
        for (size_t j = 0; j < i; j++)
            if (entry[j].session == entry[i].session)
                return lk_fail(err, LK_E_ARG, "sessions %zu and %zu of the batch are the same", j,
                               i);
        if (entry[i].n_tok <= LK_EVAL_MAX) n_row += entry[i].n_tok; /* larger entries fail alone */
    }
    if (n_row > LK_BATCH_MAX)
        return lk_fail(err, LK_E_ARG, "a batch of %zu tokens is too large; at most %d are allowed",
                       n_row, LK_BATCH_MAX);
    return LK_OK;
}

/* Can the tokens of an entry be removed again, except for the first one? */
static bool may_have_drafts(const lk_batch_entry *entry) {
    return entry->all && entry->n_tok > 1 && entry->n_tok <= LK_DRAFT_TOKENS &&
           entry->n_tok <= lk_session_draftable(entry->session, entry->n_tok, NULL);
}

/* Check an entry and find all memory that its session needs. The reason of a failure is in
 * entry->err. */
static lk_status prepare_entry(lk_batch_entry *entry) {
    struct lk_session *s = entry->session;
    lk_err *err = &entry->err;
    if (entry->n_tok < 1 || entry->n_tok > LK_EVAL_MAX)
        return lk_fail(err, LK_E_ARG, "cannot evaluate %zu tokens at once; give 1 to %d",
                       entry->n_tok, LK_EVAL_MAX);
    if (s->n_tok + entry->n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "the context of %d tokens is full; use a larger context length",
                       s->opts.n_ctx);
    if (s->n_tok == 0 && lk_recipe_replays(s->recipe))
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "'keep by replay' scores a prompt that is prefilled as a whole, not in chunks "
            "or steps; use another policy here");
    lk_status status = lk_session_check_tokens(s, entry->tok, entry->n_tok, err);
    if (status) return status;
    if (s->cancelled && atomic_exchange(&s->cancelled, 0))
        return lk_fail(err, LK_E_CANCELLED, "cancelled");
    lk_session_drop_suspended(s);
    size_t n_out = entry->all ? entry->n_tok : 1;
    if (n_out > s->logits_cap) status = lk_session_reserve_logits(s, n_out, err);
    if (!status && s->recipe->absorbs)
        status = lk_session_reserve_absorb(s, (int)entry->n_tok, err);
    bool drafts = may_have_drafts(entry);
    if (!status && drafts) status = lk_cache_prepare_drafts(s->cache, err);
    if (!status && drafts && s->recurrent)
        status = lk_recurrent_drafts_reserve(s, (int)entry->n_tok, err);
    if (!status && s->recurrent_there.is_old) status = lk_recurrent_there_prepare(s, err);
    if (status) return status;
    /* lk_session_reserve found the memory for single tokens. A pass of drafts needs no more. */
    if ((entry->n_tok == 1 || drafts) && s->cache->reserved >= (int64_t)entry->n_tok) {
        s->cache->reserved -= (int64_t)entry->n_tok;
        return LK_OK;
    }
    return lk_cache_prepare(s->cache, 0, s->cache->shape.n_layer, (int64_t)entry->n_tok,
                            (int64_t)entry->n_tok, err);
}

/* Write tokens, positions and the rows that get logits to the graph's inputs, as far as it needs
 * them. */
static void set_inputs(struct lk_pass *pass) {
    struct lk_graph *g = &pass->graph;
    int32_t n_out = 0;
    for (size_t i = 0; i < pass->n_seq; i++) {
        const struct lk_seq *seq = &pass->seq[i];
        const struct lk_session *s = seq->session;
        lk_graph_set(g->tok, (size_t)seq->row * sizeof(int32_t), seq->entry->tok,
                     (size_t)seq->n_tok * sizeof(int32_t));
        lk_graph_set_positions(g, (size_t)seq->row, s->n_tok, (size_t)seq->n_tok);
        int end = seq->row + seq->n_tok;
        for (int row = end - seq->n_out; g->out && row < end; row++, n_out++)
            lk_graph_set(g->out, (size_t)n_out * sizeof row, &row, sizeof row);
    }
}

static void add_tokens(const lk_batch_entry *entry, bool drafts) {
    struct lk_session *s = entry->session;
    memcpy(s->tok + s->n_tok, entry->tok, entry->n_tok * sizeof *entry->tok);
    s->n_tok += entry->n_tok;
    s->n_pass = drafts ? entry->n_tok : 0;
    /* Free the blocks that aging emptied. Drafts that will be dropped may need theirs again. */
    if (s->cache->reserved == 0 && !drafts) lk_cache_trim(s->cache);
}

/* Give a session its tokens, and its logits if they were computed elsewhere. If its rows were not
 * computed, its layers may hold different numbers of tokens, so it is emptied. why: of the whole
 * pass, or empty. */
static void finish_entry(const struct lk_seq *seq, const lk_err *why) {
    struct lk_session *s = seq->session;
    const struct lk_model *model = s->model;
    int failed = seq->failed;
    size_t n = (size_t)seq->n_out * model->net->hp.n_vocab;
    s->n_logits = seq->n_out;
    if (!failed && !lk_bring_logits(model, s->logits, n)) failed = LK_E_IO;
    if (!failed) {
        add_tokens(seq->entry, seq->drafts);
        return;
    }
    lk_session_drop_tokens(s);
    if (why->code)
        seq->entry->err = *why;
    else if (failed == LK_E_IO && s->rows.device)
        lk_fail(&seq->entry->err, failed, "the device %s has failed; open the model again",
                s->rows.device->name);
    else if (failed == LK_E_IO)
        lk_fail_lost(&seq->entry->err);
    else
        lk_fail(&seq->entry->err, failed, "out of memory for the cache's next block");
}

/* No entry was evaluated: those without an error of their own get this one. */
static lk_status fail_entries(lk_batch_entry *entry, size_t n, const lk_err *why, lk_err *err) {
    for (size_t i = 0; i < n; i++)
        if (!entry[i].err.code) entry[i].err = *why;
    return lk_fail(err, why->code, "%s", why->msg);
}

lk_status lk_batch_build(struct lk_pass *pass, lk_batch_entry *entry, size_t n, lk_err *err) {
    lk_status status = lk_pass_reset(pass, n, err);
    for (size_t i = 0; !status && i < n; i++) {
        if (entry[i].err.code) continue;
        struct lk_seq *seq = lk_pass_add(pass, entry[i].session, (int)entry[i].n_tok,
                                         entry[i].all ? (int)entry[i].n_tok : 1);
        seq->entry = &entry[i];
        seq->drafts = may_have_drafts(&entry[i]);
    }
    return !status && pass->n_seq > 0 ? lk_pass_build(pass, err) : status;
}

/* Give the sessions their logits [n_out][n_vocab], if they are computed here. */
static void take_logits(const struct lk_pass *pass) {
    if (!pass->graph.logits) return;
    size_t at = 0;
    for (size_t i = 0; i < pass->n_seq; i++) {
        size_t n = (size_t)pass->seq[i].n_out * pass->model->net->hp.n_vocab;
        if (!pass->seq[i].failed)
            lk_graph_get(pass->graph.logits, at, pass->seq[i].session->logits, n * sizeof(float));
        at += n * sizeof(float);
    }
}

/* Compute the pass in the layers that are held here. Sequences that fail are marked. All of them
 * fail if a process is lost, or if ggml cannot start: then *why has the reason. */
static void compute(struct lk_pass *pass, lk_err *why) {
    struct lk_model *model = pass->model;
    struct lk_graph *g = &pass->graph;
    size_t n = (size_t)pass->n_row * model->net->hp.n_embd;
    lk_status status = LK_OK;
    set_inputs(pass);
    for (size_t i = 0; i < pass->n_seq; i++)
        if (pass->seq[i].drafts && pass->seq[i].session->recurrent)
            lk_recurrent_drafts_begin(pass->seq[i].session);
    if (!lk_net_has_all(model->net)) lk_pass_count_rows(pass);
    if (g->x_in && !lk_receive_hidden(model, pass->hidden, n)) status = lk_fail_lost(why);
    if (g->x_in && !status) lk_graph_set(g->x_in, 0, pass->hidden, n * sizeof(float));
    if (!status) {
        status = lk_graph_run(g, model, why);
        if (status) lk_abort(model, why->msg); /* others wait for what this process sends */
    }
    if (!status && g->x_out) {
        lk_graph_get(g->x_out, 0, pass->hidden, n * sizeof(float));
        if (!lk_send_hidden(model, pass->hidden, n)) status = lk_fail_lost(why);
    }
    for (size_t i = 0; status && i < pass->n_seq; i++) pass->seq[i].failed = status;
    if (!status) take_logits(pass);
    if (!status) lk_agree_on_nodes(model, pass->seq, pass->n_seq);
}

lk_status lk_eval_entries(struct lk_pass *pass, lk_batch_entry *entry, size_t n, lk_err *err) {
    lk_err why = {0};
    for (size_t i = 0; i < n; i++) prepare_entry(&entry[i]);
    lk_status status = lk_batch_build(pass, entry, n, &why);
    status = lk_agree_on_entries(pass, pass->model, entry, n, status, &why);
    if (status) {
        for (size_t i = 0; i < n; i++)
            if (!entry[i].err.code) lk_cache_trim(entry[i].session->cache);
        return fail_entries(entry, n, &why, err);
    }
    if (pass->n_seq == 0) return LK_OK; /* every entry has its own error */
    compute(pass, &why);
    for (size_t i = 0; i < pass->n_seq; i++) finish_entry(&pass->seq[i], &why);
    return why.code ? lk_fail(err, why.code, "%s", why.msg) : LK_OK;
}

static lk_status run_batch(struct lk_op *op, lk_err *err) {
    return lk_eval_entries(&op->batch->pass, op->entry, op->n_entry, err);
}

lk_status lk_batch_eval(lk_batch *batch, lk_batch_entry *entry, size_t n, lk_err *err) {
    struct lk_model *model = batch->pass.model;
    struct lk_op op = {.kind = LK_OP_BATCH_EVAL,
                       .run = run_batch,
                       .model = model,
                       .batch = batch,
                       .entry = entry,
                       .n_entry = n};
    lk_err why = {0};
    for (size_t i = 0; i < n; i++) entry[i].err = (lk_err){0};
    lk_status status = check_entries(&batch->pass, entry, n, &why);
    if (!status) status = lk_op_run(model, &op, &why);
    return status ? fail_entries(entry, n, &why, err) : LK_OK;
}

/* ---- one session: a step, or a text in chunks through the cache ---- */

static lk_status run_eval(struct lk_op *op, lk_err *err) {
    lk_batch_entry entry = {
        .session = op->session, .tok = op->tok, .n_tok = op->n, .all = op->flag};
    lk_status status = lk_eval_entries(&op->session->pass, &entry, 1, err);
    if (status || !entry.err.code) return status;
    return lk_fail(err, entry.err.code, "%s", entry.err.msg);
}

lk_status lk_session_eval(lk_session *s, const int32_t *tok, size_t n_tok, bool all, lk_err *err) {
    struct lk_op op = {
        .kind = LK_OP_EVAL, .run = run_eval, .session = s, .tok = tok, .n = n_tok, .flag = all};
    return lk_op_run(s->model, &op, err);
}

/* Large chunks are faster; they are halved if memory runs out. */
lk_status lk_session_extend(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    const size_t min_chunk = 32;
    for (size_t chunk = LK_EVAL_MAX; s->n_tok < n_tok;) {
        size_t at = s->n_tok, n = n_tok - at < chunk ? n_tok - at : chunk;
        lk_status status = lk_session_eval(s, tok + at, n, false, err);
        if (status == LK_E_NOMEM && n > min_chunk && s->n_tok == at) {
            lk_graph_free(&s->pass.graph, &s->ledger); /* a graph's memory does not shrink */
            chunk = n / 2;
            continue;
        }
        if (status) return status;
        uint64_t n_layer = s->cache->shape.n_layer;
        if (!lk_report(s->model, s->opts.progress, s->opts.user, s->n_tok * n_layer,
                       n_tok * n_layer))
            return lk_agree(s->model, lk_fail(err, LK_E_CANCELLED, "cancelled during prefill"),
                            err);
    }
    return LK_OK;
}

/* ---- drafts: the maximum length of a pass, and removing rejected tokens ---- */

size_t lk_session_draftable(const lk_session *s, size_t n_tok, const char **why) {
    size_t left = (size_t)s->opts.n_ctx - s->n_tok;
    bool leaves_out = s->recipe->read > 0;
    if (why) *why = lk_cache_refuses_drafts(s->cache);
    if (n_tok > left) n_tok = left;
    if (leaves_out && n_tok > LK_DECODE_TOKENS) n_tok = LK_DECODE_TOKENS;
    n_tok = (size_t)lk_cache_draftable(s->cache, (int64_t)n_tok);
    return n_tok > 0 ? n_tok : 1;
}

static lk_status truncate_session(lk_session *s, size_t n_tok, lk_err *err) {
    if (n_tok < 1 || n_tok > s->n_tok)
        return lk_fail(err, LK_E_ARG, "cannot keep %zu of %zu tokens", n_tok, s->n_tok);
    size_t n_drop = s->n_tok - n_tok;
    if (n_drop == 0) return LK_OK;
    if (n_drop < s->n_pass && s->recurrent) {
        lk_status status = lk_recurrent_drafts_repeat(s, (int)(s->n_pass - n_drop), err);
        if (status) {
            lk_session_drop_tokens(s);
            return status;
        }
    }
    if (n_drop < s->n_pass)
        lk_cache_drop_drafts(s->cache, (int64_t)(s->n_pass - n_drop), (int64_t)n_drop);
    else if (s->recurrent || !lk_cache_truncate(s->cache, (int64_t)n_tok))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%zu tokens cannot be removed: rows of older levels, or states of tokens "
                       "before the last pass, would have to go back; evaluate the text again",
                       n_drop);
    if (n_drop >= s->n_pass) s->n_cut++;
    lk_checkpoints_drop(s, n_tok);
    s->n_pass = n_drop < s->n_pass ? s->n_pass - n_drop : 0;
    s->n_logits = (size_t)s->n_logits > n_drop ? s->n_logits - (int32_t)n_drop : 0;
    s->n_tok = n_tok;
    return LK_OK;
}

static lk_status run_truncate(struct lk_op *op, lk_err *err) {
    return truncate_session(op->session, op->n, err);
}

lk_status lk_session_truncate(lk_session *s, size_t n_tok, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_TRUNCATE, .run = run_truncate, .session = s, .n = n_tok};
    return lk_op_run(s->model, &op, err);
}
