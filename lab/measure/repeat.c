/* Long caches without long computation, for measuring speed: rows of a text that was read once are
 * appended again and again. Their positions are those of the text, so what such a cache predicts is
 * worth nothing; what it costs to read is the same. */
#include "engine/engine.h"

#include <string.h>

/* The work on one side of all layers; K and V have threads of their own. */
struct repeat {
    struct lk_cache *to;
    const struct lk_cache *from;
    int layer;
    enum lk_side side;
    size_t n_tok;
    float *rows; /* [LK_MAX_MOVE][n_head_kv][d_head] */
    lk_status status;
};

/* Rows [at, at + n) of an exact stream, counted from its oldest. */
static void read_exact(const struct lk_cache *cache, const struct lk_kv *kv, int64_t at, int64_t n,
                       float *x) {
    size_t stride = (size_t)cache->shape.n_head_kv * cache->shape.d_head;
    for (int level = 0; level < kv->n_level && n > 0; level++) {
        for (; n > 0 && at < kv->fill[level].rows;) {
            int row;
            int64_t here;
            const char *block = lk_cache_locate(kv, level, at, &row, &here);
            int take = (int)(here < n ? here : n);
            for (int h = 0; h < cache->shape.n_head_kv; h++)
                lk_codec_decode(&kv->rule[level].codec, kv->side, cache->shape.d_head,
                                kv->rule[level].block_rows, NULL,
                                block + h * kv->level[level].head_bytes, row, take,
                                x + (size_t)h * cache->shape.d_head, stride);
            x += take * stride;
            at += take;
            n -= take;
        }
        at -= kv->fill[level].rows;
    }
}

/* Rows for positions [pos, pos + n): those of the source, from its begin again behind its end. */
static void gather(const struct repeat *r, int64_t pos, int64_t n) {
    const struct lk_kv *source = &r->from->kv[r->layer][r->side];
    int64_t n_source = source->n_tok - source->first; /* a sliding window has not kept all */
    size_t stride = (size_t)r->from->shape.n_head_kv * r->from->shape.d_head;
    for (int64_t done = 0; done < n;) {
        int64_t at = (pos + done - source->first % n_source + n_source) % n_source;
        int64_t take = n_source - at < n - done ? n_source - at : n - done;
        read_exact(r->from, source, at, take, r->rows + done * stride);
        done += take;
    }
}

static void *repeat_side(void *arg) {
    struct repeat *r = arg;
    for (size_t done = 0; r->status == LK_OK && done < r->n_tok;) {
        int64_t n = r->n_tok - done < LK_MAX_MOVE ? r->n_tok - done : LK_MAX_MOVE;
        gather(r, r->to->kv[r->layer][r->side].n_tok, n);
        r->status = lk_cache_append(r->to, r->layer, r->side, r->rows, n, NULL);
        if (r->status == LK_OK) r->status = lk_cache_age(r->to, r->layer, r->side, NULL);
        done += n;
    }
    return NULL;
}

/* Both sides of a layer whose K and V settle together. */
static void repeat_together(struct repeat side[2]) {
    for (size_t done = 0; side[LK_K].status == LK_OK && done < side[LK_K].n_tok;) {
        int64_t n = side[LK_K].n_tok - done < LK_MAX_MOVE ? side[LK_K].n_tok - done : LK_MAX_MOVE;
        for (int i = 0; side[LK_K].status == LK_OK && i < 2; i++) {
            struct repeat *r = &side[i];
            gather(r, r->to->kv[r->layer][r->side].n_tok, n);
            side[LK_K].status = lk_cache_append(r->to, r->layer, r->side, r->rows, n, NULL);
        }
        if (side[LK_K].status == LK_OK)
            side[LK_K].status = lk_cache_age(side[LK_K].to, side[LK_K].layer, LK_K, NULL);
        done += n;
    }
}

static lk_status repeat_layer(struct lk_session *s, const struct lk_session *source, int layer,
                              size_t n_tok, float *rows, lk_err *err) {
    lk_status status = lk_cache_prepare(s->cache, layer, layer + 1, n_tok, LK_MAX_MOVE, err);
    if (status != LK_OK) return status;
    struct repeat side[2];
    size_t n_row = (size_t)LK_MAX_MOVE * s->cache->shape.n_head_kv * s->cache->shape.d_head;
    for (int i = 0; i < 2; i++)
        side[i] = (struct repeat){.to = s->cache,
                                  .from = source->cache,
                                  .layer = layer,
                                  .side = i,
                                  .n_tok = n_tok,
                                  .rows = rows + i * n_row};
    pthread_t thread;
    bool together = s->cache->kv[layer][LK_K].evict;
    bool two = !together && s->model->n_thread > 1 &&
               pthread_create(&thread, NULL, repeat_side, &side[LK_V]) == 0;
    if (together)
        repeat_together(side);
    else
        repeat_side(&side[LK_K]);
    if (two)
        pthread_join(thread, NULL);
    else if (!together)
        repeat_side(&side[LK_V]);
    status = side[LK_K].status ? side[LK_K].status : side[LK_V].status;
    return status == LK_OK ? LK_OK
                           : lk_fail(err, status, "no memory for the cache of layer %d", layer);
}

lk_status lk_session_repeat(struct lk_session *s, const struct lk_session *source, size_t n_tok,
                            lk_err *err) {
    if (source->n_tok == 0) return lk_fail(err, LK_E_ARG, "there are no rows to repeat");
    if (s->n_tok + n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL, "%zu tokens do not fit into a context of %d",
                       s->n_tok + n_tok, s->opts.n_ctx);
    size_t size =
        2ull * LK_MAX_MOVE * s->cache->shape.n_head_kv * s->cache->shape.d_head * sizeof(float);
    float *rows = lk_alloc(&s->ledger, LK_FOR_SCRATCH, size);
    if (!rows) return lk_fail(err, LK_E_NOMEM, "no memory to repeat rows");
    lk_status status = LK_OK;
    uint64_t n_layer = s->cache->shape.n_layer;
    for (uint64_t layer = 0; status == LK_OK && layer < n_layer; layer++) {
        status = repeat_layer(s, source, (int)layer, n_tok, rows, err);
        if (status == LK_OK && s->opts.progress &&
            !s->opts.progress(s->opts.user, (layer + 1) * n_tok, n_layer * n_tok))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled while repeating rows");
    }
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows, size);
    lk_cache_trim(s->cache);
    if (status != LK_OK) {
        lk_session_clear(s);
        return status;
    }
    for (size_t i = 0; i < n_tok; i++)
        s->tok[s->n_tok + i] = source->tok[(s->n_tok + i) % source->n_tok];
    s->n_tok += n_tok;
    s->n_logits = 0;
    return LK_OK;
}
