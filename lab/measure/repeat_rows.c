/* Appends repeated K and V rows to a cache. */
#include "measure/repeat_rows.h"

#include "cluster/cluster.h"
#include "lowkey_lab.h"

#include <string.h>

/* The work on one side of a layer. K and V have separate threads. */
struct repeat {
    struct lk_cache *to;
    const struct lk_cache *from;
    int layer;
    enum lk_side side;
    size_t n_tok;
    float *rows; /* [LK_MAX_MOVE][n_head_kv][d_head] */
    lk_status status;
};

/* Fill r->rows for positions [pos, pos + n) with the source's rows, wrapping around at its end. */
static void read_source_rows(const struct repeat *r, int64_t pos, int64_t n) {
    const struct lk_kv *source = &r->from->kv[r->layer][r->side];
    int64_t n_source = source->n_tok - source->first; /* a sliding window keeps only the newest */
    size_t stride = lk_kv_width(source);
    if (source->is_elsewhere) return;
    for (int64_t done = 0; done < n;) {
        int64_t at = (pos + done - source->first % n_source + n_source) % n_source;
        int64_t n_now = n_source - at < n - done ? n_source - at : n - done;
        for (int head = 0; head < source->n_head; head++)
            lk_kv_read_positions(source, source->first + at, source->first + at + n_now, head,
                                 &lk_kernels_reference,
                                 r->rows + done * stride + (size_t)head * source->d_head, stride);
        done += n_now;
    }
}

/* Rows of the next batch when `done` are appended. */
static int64_t batch_rows(const struct repeat *r, size_t done) {
    return r->n_tok - done < LK_MAX_MOVE ? r->n_tok - done : LK_MAX_MOVE;
}

/* Thread function: append all rows of one side. */
static void *repeat_side(void *arg) {
    struct repeat *r = arg;
    for (size_t done = 0; !r->status && done < r->n_tok;) {
        int64_t n = batch_rows(r, done);
        read_source_rows(r, r->to->kv[r->layer][r->side].n_tok, n);
        r->status = lk_cache_append(r->to, r->layer, r->side, r->rows, n, NULL);
        if (!r->status) r->status = lk_cache_age(r->to, r->layer, r->side, NULL);
        done += n;
    }
    return NULL;
}

/* Append all rows of a layer whose K and V age together, because a policy evicts rows of both. */
static void repeat_both_sides(struct repeat side[2]) {
    struct repeat *k = &side[LK_K];
    for (size_t done = 0; !k->status && done < k->n_tok;) {
        int64_t n = batch_rows(k, done);
        for (int i = 0; !k->status && i < 2; i++) {
            struct repeat *r = &side[i];
            read_source_rows(r, r->to->kv[r->layer][r->side].n_tok, n);
            k->status = lk_cache_append(r->to, r->layer, r->side, r->rows, n, NULL);
        }
        if (!k->status) k->status = lk_cache_age(k->to, k->layer, LK_K, NULL);
        done += n;
    }
}

static lk_status repeat_layer(struct lk_session *s, const struct lk_session *source, int layer,
                              size_t n_tok, float *rows, lk_err *err) {
    lk_status status = lk_cache_prepare(s->cache, layer, layer + 1, n_tok, LK_MAX_MOVE, err);
    if (status) return status;
    struct repeat side[2];
    size_t n_row = LK_MAX_MOVE * lk_cache_width(&s->cache->shape, LK_V);
    for (int i = 0; i < 2; i++)
        side[i] = (struct repeat){.to = s->cache,
                                  .from = source->cache,
                                  .layer = layer,
                                  .side = i,
                                  .n_tok = n_tok,
                                  .rows = rows + i * n_row};
    if (s->cache->kv[layer][LK_K].evict) {
        repeat_both_sides(side);
    } else {
        pthread_t thread;
        bool threaded =
            s->model->n_thread > 1 && pthread_create(&thread, NULL, repeat_side, &side[LK_V]) == 0;
        repeat_side(&side[LK_K]);
        if (threaded)
            pthread_join(thread, NULL);
        else
            repeat_side(&side[LK_V]);
    }
    status = side[LK_K].status ? side[LK_K].status : side[LK_V].status;
    return status ? lk_fail(err, status, "no memory for the cache of layer %d", layer) : LK_OK;
}

static lk_status repeat_rows(struct lk_session *s, const struct lk_session *source, size_t n_tok,
                             lk_err *err) {
    if (source->n_tok == 0) return lk_fail(err, LK_E_ARG, "the source session has no rows");
    if (source->cache->shape.place.share.n > 1)
        return lk_fail(err, LK_E_ARG,
                       "the rows of the source session are divided over several ranks");
    if (s->n_tok + n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL, "%zu tokens do not fit into a context of %d",
                       s->n_tok + n_tok, s->opts.n_ctx);
    size_t size = 2 * LK_MAX_MOVE * lk_cache_width(&s->cache->shape, LK_V) * sizeof(float);
    float *rows = lk_alloc(&s->ledger, LK_FOR_SCRATCH, size);
    lk_status status = rows ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory to repeat rows");
    uint64_t n_layer = s->cache->shape.n_layer;
    status = lk_agree(s->model, status, err);
    for (uint64_t layer = 0; !status && layer < n_layer; layer++) {
        status = repeat_layer(s, source, (int)layer, n_tok, rows, err);
        status = lk_agree(s->model, status, err);
        if (!status && !lk_report(s->model, s->opts.progress, s->opts.user, (layer + 1) * n_tok,
                                  n_layer * n_tok))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled while repeating rows");
    }
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows, size);
    lk_cache_trim(s->cache);
    if (status) {
        lk_session_clear(s);
        return status;
    }
    for (size_t i = 0; i < n_tok; i++)
        s->tok[s->n_tok + i] = source->tok[(s->n_tok + i) % source->n_tok];
    s->n_tok += n_tok;
    s->n_pass = 0;
    s->n_logits = 0;
    return LK_OK;
}

static lk_status run_repeat(struct lk_op *op, lk_err *err) {
    return repeat_rows(op->session, op->other, op->n, err);
}

lk_status lk_repeat_rows(struct lk_session *s, const struct lk_session *source, size_t n_tok,
                         lk_err *err) {
    struct lk_op op = {.kind = LK_OP_EXTRA,
                       .run = run_repeat,
                       .session = s,
                       .other = (struct lk_session *)source, /* is only read */
                       .n = n_tok};
    return lk_op_run(s->model, &op, err);
}

void lk_bench_join(struct lk_cluster *cluster) { cluster->extra = run_repeat; }
