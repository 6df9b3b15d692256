/* A text in chunks through several stages. */
#include "engine/chunks.h"

#include "engine/batch.h"
#include "engine/pipeline.h"

struct chunks {
    struct lk_pipeline pipeline; /* of chunks; fewer if the text is cancelled */
    struct lk_session *s;
    const int32_t *tok;    /* [n_tok] */
    size_t first, n_tok;   /* the chunks are of tokens [first, n_tok) */
    bool cancelled, stops; /* the chunks have become fewer; stage 0 makes them fewer next */
    lk_status failed;      /* of this rank's nodes */
    struct lk_cluster *cluster;
};

static lk_batch_item chunk_item(const struct chunks *p, int64_t k) {
    size_t at = p->first + (size_t)k * LK_EVAL_MAX, left = p->n_tok - at;
    return (lk_batch_item){
        .session = p->s, .tok = p->tok + at, .n_tok = left < LK_EVAL_MAX ? left : LK_EVAL_MAX};
}

/* Make this rank ready for its chunk, and agree with the others. If the text is cancelled, stage 0
 * starts no more chunks, and the other stages finish those already started. */
static lk_status start_tick(struct chunks *p, int64_t tick, lk_batch_item *item, lk_err *err) {
    int64_t k = lk_pipeline_own(&p->pipeline, tick);
    lk_err why = {0};
    lk_status status = p->failed;
    if (status != LK_OK) lk_fail(&why, status, "out of memory for the cache's next block");
    if (status == LK_OK && p->stops)
        status = lk_fail(&why, LK_E_CANCELLED, "cancelled during prefill");
    if (status == LK_OK && k >= 0) {
        *item = chunk_item(p, k);
        status = lk_items_prepare(&p->s->pass, item, 1, &why);
        if (status == LK_OK && item->err.code != LK_OK) {
            why = item->err;
            status = why.code;
        }
    }
    p->stops = false;
    status = lk_cluster_agree(p->cluster, status, &why);
    if (status == LK_OK) return LK_OK;
    lk_fail(err, status, "%s", why.msg);
    if (status != LK_E_CANCELLED) return status;
    if (tick < p->pipeline.n_unit) p->pipeline.n_unit = tick;
    p->cancelled = true;
    if (k >= p->pipeline.n_unit) lk_cache_trim(p->s->cache);
    return LK_OK;
}

/* Compute this rank's chunk of the tick, if there is one. */
static lk_status run_tick(struct chunks *p, int64_t tick, const lk_batch_item *item, lk_err *err) {
    int64_t k = lk_pipeline_own(&p->pipeline, tick),
            previous = lk_pipeline_previous(&p->pipeline, tick);
    struct lk_session *s = p->s;
    if (k >= 0) lk_items_start(&s->pass);
    lk_status status = lk_pipeline_tick(&p->pipeline, tick,
                                        previous >= 0 ? chunk_item(p, previous).n_tok : 0, err);
    if (status != LK_OK || k < 0) return status;
    p->failed = (lk_status)s->pass.seq[0].failed;
    lk_item_add_tokens(item, false);
    s->n_logits = 1; /* rank 0 gets them after the last chunk */
    return LK_OK;
}

/* All ticks. LK_OK also if the text was cancelled. */
static lk_status run_ticks(struct chunks *p, lk_err *err) {
    const lk_session_opts *opts = &p->s->opts;
    uint64_t n_layer = (uint64_t)p->s->cache->shape.n_layer, n_new = p->n_tok - p->first,
             n_tick = (uint64_t)lk_pipeline_ticks(&p->pipeline);
    bool first_stage = p->s->model->net->stages.own == 0;
    lk_status status = LK_OK;
    for (int64_t tick = 0; status == LK_OK && tick < lk_pipeline_ticks(&p->pipeline); tick++) {
        lk_batch_item item;
        status = start_tick(p, tick, &item, err);
        if (status == LK_OK) status = run_tick(p, tick, &item, err);
        uint64_t done = p->first + n_new * (uint64_t)(tick + 1) / n_tick;
        if (status == LK_OK && !p->cancelled &&
            !lk_cluster_report(p->cluster, opts->progress, opts->user, done * n_layer,
                               p->n_tok * n_layer))
            p->stops = first_stage; /* others finish what it has started */
    }
    lk_err why = {0};
    if (status != LK_OK) return status;
    if (p->failed) lk_fail(&why, p->failed, "out of memory for the cache's next block");
    status = lk_cluster_agree(p->cluster, p->failed, &why);
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}

lk_status lk_chunks_extend(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    const struct lk_net *net = s->model->net;
    struct chunks p = {
        .pipeline = {.pass = &s->pass,
                     .n_unit = (int64_t)((n_tok - s->n_tok + LK_EVAL_MAX - 1) / LK_EVAL_MAX)},
        .s = s,
        .tok = tok,
        .first = s->n_tok,
        .n_tok = n_tok,
        .cluster = s->model->cluster};
    lk_err why = {0};
    lk_status status = lk_pass_reserve_hidden(&s->pass, LK_EVAL_MAX, &why);
    status = lk_cluster_agree(p.cluster, status, &why);
    if (status == LK_OK) status = run_ticks(&p, &why);
    lk_pass_drop_hidden(&s->pass);
    const struct ggml_tensor *logits = s->pass.graph.logits;
    if (status == LK_OK && p.pipeline.n_unit > 0 &&
        !lk_cluster_send_logits(p.cluster, net->stages.n, logits ? logits->data : NULL, s->logits,
                                (size_t)net->hp.n_vocab))
        status = lk_cluster_fail_lost(&why);
    if (status != LK_OK) {
        lk_session_drop_tokens(s);
        lk_cache_trim(s->cache);
    } else if (p.cancelled) {
        status = LK_E_CANCELLED;
    }
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}
