/* Evaluation of the tokens of one session: a step, or a text in chunks through the cache. */
#include "engine/extend.h"

#include "engine/batch.h"

lk_status lk_session_eval(lk_session *s, const int32_t *tok, size_t n_tok, bool all, lk_err *err) {
    lk_batch_item item = {.session = s, .tok = tok, .n_tok = n_tok, .all = all};
    struct lk_op op = lk_session_op(s, LK_OP_EVAL);
    op.n = n_tok;
    op.flag = all;
    const struct lk_op_part part = {tok, n_tok * sizeof *tok};
    lk_status status = lk_cluster_lead(s->model->cluster, op, &part, 1, err);
    if (status != LK_OK) return status;
    status = lk_eval_items(&s->pass, &item, 1, err);
    lk_cluster_done(s->model->cluster);
    if (status != LK_OK || item.err.code == LK_OK) return status;
    return lk_fail(err, item.err.code, "%s", item.err.msg);
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
        if (!lk_cluster_report(s->model->cluster, s->opts.progress, s->opts.user,
                               s->n_tok * n_layer, n_tok * n_layer))
            return lk_cluster_agree(s->model->cluster,
                                    lk_fail(err, LK_E_CANCELLED, "cancelled during prefill"), err);
    }
    return LK_OK;
}
