/* Evaluation of the tokens of one session: a step, or a text in chunks through the cache. */
#include "engine/extend.h"

#include "engine/batch.h"
#include "lowkey_serve.h"

static lk_status run_eval(struct lk_op *op, lk_err *err) {
    lk_batch_item item = {.session = op->session, .tok = op->tok, .n_tok = op->n, .all = op->flag};
    lk_status status = lk_eval_items(&op->session->pass, &item, 1, err);
    if (status != LK_OK || item.err.code == LK_OK) return status;
    return lk_fail(err, item.err.code, "%s", item.err.msg);
}

lk_status lk_session_eval(lk_session *s, const int32_t *tok, size_t n_tok, bool all, lk_err *err) {
    struct lk_op op = {
        .kind = LK_OP_EVAL, .run = run_eval, .session = s, .tok = tok, .n = n_tok, .flag = all};
    return lk_op_run(s->model->peers, &op, err);
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
        if (status != LK_OK) return status;
        uint64_t n_layer = s->cache->shape.n_layer;
        if (!lk_report(s->model->peers, s->opts.progress, s->opts.user, s->n_tok * n_layer,
                       n_tok * n_layer))
            return lk_agree(s->model->peers,
                            lk_fail(err, LK_E_CANCELLED, "cancelled during prefill"), err);
    }
    return LK_OK;
}
