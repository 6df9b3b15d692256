/* Context shift: drops blocks from the middle of a cache. */
#include "cache/shift_rows.h"

#include "cache/cache.h"
#include "cache/move.h"

#include <string.h>

/* The level that rows are dropped from: the oldest one, except for sinks. */
static int body_of(const struct lk_kv *kv) { return lk_level_sinks(kv->rule, kv->n_level) ? 1 : 0; }

static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

bool lk_cache_plan_shift(const struct lk_cache *cache, struct lk_shift *shift) {
    const struct lk_kv *any = lk_cache_kv(cache, 0);
    int64_t step = LK_TILE, n_sink = 0, n_kept = 0, end = any->n_tok - any->n_shifted;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->n_swa > 0) continue;
        int body = body_of(kv);
        int64_t rows = kv->count[body].rows + (body ? kv->count[0].rows : 0), unit = step;
        while (step % kv->rule[body].block_rows) step += unit;
        if (rows < end) end = rows;
        n_sink = lk_level_sinks(kv->rule, kv->n_level);
        n_kept = kv->n_kept;
    }
    int64_t n_more = shift->n_keep > n_sink ? round_up(shift->n_keep - n_sink, step) : 0;
    /* A session that was cut back may keep a part of a block. It is dropped. */
    if (any->n_shifted > 0) n_more = n_kept > n_sink ? (n_kept - n_sink) / step * step : 0;
    shift->n_keep = n_sink + n_more;
    int64_t max = (end - shift->n_keep - 1) / step * step; /* the body is never empty afterwards */
    shift->n_drop = round_up(shift->n_drop, step);
    if (shift->n_drop > max) shift->n_drop = max;
    return shift->n_drop > 0;
}

static void drop_middle(struct lk_cache *cache, struct lk_kv *kv, const struct lk_shift *shift) {
    int body = body_of(kv), block_rows = kv->rule[body].block_rows;
    struct lk_level *level = &kv->level[body];
    int64_t from = (shift->n_keep - (body ? kv->count[0].rows : 0)) / block_rows,
            n = shift->n_drop / block_rows;
    for (int64_t b = from; b < from + n; b++) lk_pool_free(&cache->pool, level->block[b]);
    level->n_block -= n;
    memmove(level->block + from, level->block + from + n,
            (size_t)(level->n_block - from) * sizeof *level->block);
    kv->count[body].rows -= shift->n_drop;
    kv->first += shift->n_drop;
    kv->n_kept = shift->n_keep;
}

static void drop_front(struct lk_cache *cache, struct lk_kv *kv, const struct lk_shift *shift) {
    int64_t end = kv->n_shifted + shift->n_keep + shift->n_drop; /* index of the rest */
    for (int i = 0; i < kv->n_level && kv->first < end; i++) {
        int64_t n = kv->count[i].rows < end - kv->first ? kv->count[i].rows : end - kv->first;
        if (n > 0) lk_move_drop(cache, kv, i, n);
        kv->first += n;
    }
}

void lk_cache_shift(struct lk_cache *cache, const struct lk_shift *shift) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->n_swa > 0)
            drop_front(cache, kv, shift);
        else
            drop_middle(cache, kv, shift);
        kv->n_shifted += shift->n_drop;
    }
    lk_cache_trim(cache);
}
