/* Stages that work on successive chunks of a text. */
#include "engine/pipeline.h"

#include "engine/batch.h"

#include <string.h>

struct pipeline {
    struct lk_session *s;
    const int32_t *tok;    /* [n_tok] */
    size_t first, n_tok;   /* the chunks are of tokens [first, n_tok) */
    int64_t n_chunk;       /* fewer if the text is cancelled */
    bool cancelled, stops; /* the chunks have become fewer; stage 0 makes them fewer next */
    float *x;              /* [LK_EVAL_MAX][n_embd] hidden states of the stage before */
    lk_status failed;      /* of this rank's nodes */
    const struct lk_stages *stages;
    struct lk_cluster *cluster;
};

/* The chunk that a stage computes in a tick; -1: none. */
static int64_t chunk_of(const struct pipeline *p, int64_t tick, int stage) {
    int64_t k = tick - stage;
    return k >= 0 && k < p->n_chunk ? k : -1;
}

static lk_batch_item chunk_item(const struct pipeline *p, int64_t k) {
    size_t at = p->first + (size_t)k * LK_EVAL_MAX, left = p->n_tok - at;
    return (lk_batch_item){
        .session = p->s, .tok = p->tok + at, .n_tok = left < LK_EVAL_MAX ? left : LK_EVAL_MAX};
}

/* Make this rank ready for its chunk, and agree with the others. If the text is cancelled, stage 0
 * starts no other chunk, and the other stages finish those that it has started. */
static lk_status start_tick(struct pipeline *p, int64_t tick, lk_batch_item *item, lk_err *err) {
    int64_t k = chunk_of(p, tick, p->stages->own);
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
    if (tick < p->n_chunk) p->n_chunk = tick;
    p->cancelled = true;
    if (k >= p->n_chunk) lk_cache_trim(p->s->cache);
    return LK_OK;
}

/* Compute a chunk in the layers of this rank. */
static lk_status run_chunk(struct pipeline *p, const lk_batch_item *item, lk_err *err) {
    struct lk_session *s = p->s;
    struct lk_graph *g = &s->pass.graph;
    lk_items_start(&s->pass, item, 1);
    if (g->x_in) memcpy(g->x_in->data, p->x, ggml_nbytes(g->x_in));
    lk_status status = lk_graph_run(g, s->model, err);
    if (status != LK_OK) {
        lk_cluster_abort(p->cluster, err->msg); /* the others wait for hidden states */
        return status;
    }
    p->failed = (lk_status)s->pass.seq[0].failed;
    lk_item_add_tokens(item, false);
    s->n_logits = 1; /* rank 0 gets them after the last chunk */
    return LK_OK;
}

/* After a tick: this rank's hidden states go to the next stage, and those of the stage before come
 * here. Neighbors do not both send first. */
static bool exchange(struct pipeline *p, int64_t tick) {
    const struct lk_stages *s = p->stages;
    size_t n_embd = p->s->model->net->hp.n_embd;
    int64_t sent = lk_stages_is_last(s) ? -1 : chunk_of(p, tick, s->own),
            received = s->own == 0 ? -1 : chunk_of(p, tick, s->own - 1);
    bool ok = true;
    for (int step = 0; ok && step < 2; step++) {
        if (step == s->own % 2 && sent >= 0)
            ok = lk_cluster_send_next(p->cluster, s->n, p->s->pass.graph.x_out->data,
                                      chunk_item(p, sent).n_tok * n_embd);
        if (step != s->own % 2 && received >= 0)
            ok = lk_cluster_receive_previous(p->cluster, s->n, p->x,
                                             chunk_item(p, received).n_tok * n_embd);
    }
    return ok;
}

/* All ticks. LK_OK also if the text was cancelled. */
static lk_status run_ticks(struct pipeline *p, lk_err *err) {
    const lk_session_opts *opts = &p->s->opts;
    uint64_t n_layer = (uint64_t)p->s->cache->shape.n_layer, n_new = p->n_tok - p->first,
             n_tick = (uint64_t)(p->n_chunk + p->stages->n - 1);
    lk_status status = LK_OK;
    for (int64_t tick = 0; status == LK_OK && tick < p->n_chunk + p->stages->n - 1; tick++) {
        lk_batch_item item;
        status = start_tick(p, tick, &item, err);
        if (status == LK_OK && chunk_of(p, tick, p->stages->own) >= 0)
            status = run_chunk(p, &item, err);
        if (status == LK_OK && !exchange(p, tick)) status = lk_cluster_fail_lost(err);
        uint64_t done = p->first + n_new * (uint64_t)(tick + 1) / n_tick;
        if (status == LK_OK && !p->cancelled &&
            !lk_cluster_report(p->cluster, opts->progress, opts->user, done * n_layer,
                               p->n_tok * n_layer))
            p->stops = p->stages->own == 0; /* others finish what it has started */
    }
    lk_err why = {0};
    if (status != LK_OK) return status;
    if (p->failed) lk_fail(&why, p->failed, "out of memory for the cache's next block");
    status = lk_cluster_agree(p->cluster, p->failed, &why);
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}

lk_status lk_pipeline_extend(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    struct pipeline p = {.s = s,
                         .tok = tok,
                         .first = s->n_tok,
                         .n_tok = n_tok,
                         .n_chunk = (int64_t)((n_tok - s->n_tok + LK_EVAL_MAX - 1) / LK_EVAL_MAX),
                         .stages = &s->model->net->stages,
                         .cluster = s->model->cluster};
    size_t n_x = LK_EVAL_MAX * (size_t)hp->n_embd * sizeof *p.x;
    lk_err why = {0};
    p.x = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n_x);
    lk_status status = p.x ? LK_OK : lk_fail(&why, LK_E_NOMEM, "out of memory for hidden states");
    status = lk_cluster_agree(p.cluster, status, &why);
    if (status == LK_OK) status = run_ticks(&p, &why);
    lk_release(&s->ledger, LK_FOR_SCRATCH, p.x, n_x);
    const struct ggml_tensor *logits = s->pass.graph.logits;
    if (status == LK_OK && p.n_chunk > 0 &&
        !lk_cluster_send_logits(p.cluster, p.stages->n, logits ? logits->data : NULL, s->logits,
                                (size_t)hp->n_vocab))
        status = lk_cluster_fail_lost(&why);
    if (status != LK_OK) {
        lk_session_drop_tokens(s);
        lk_cache_trim(s->cache);
    } else if (p.cancelled) {
        status = LK_E_CANCELLED;
    }
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}
