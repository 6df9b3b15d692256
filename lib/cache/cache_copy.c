#include "cache/cache_copy.h"

#include "cache/calibrate.h"
#include "cache/k_up.h"

#include <string.h>

/* Make the empty stream `to`, whose tables have room, hold the blocks of `from`. */
static void copy_stream(const struct lk_cache *cache, struct lk_kv *to, const struct lk_kv *from) {
    for (int i = 0; i < from->n_level; i++) {
        struct lk_level *level = &to->level[i];
        level->n_block = from->level[i].n_block;
        if (level->n_block)
            memcpy(level->block, from->level[i].block, level->n_block * sizeof *level->block);
        to->fill[i] = from->fill[i];
    }
    to->first = from->first;
    to->n_tok = from->n_tok;
    for (int i = 0; i < 2; i++) lk_equalizer_copy(&to->equalizer[i], &from->equalizer[i]);
    for (int i = 0; i < to->n_level; i++)
        for (int part = 0; lk_equalizer_of(to, i)->calibrated && part < to->level[i].n_part; part++)
            lk_k_up_prepare(to, i, part, cache->shape.d_head);
}

lk_status lk_cache_copy(struct lk_cache *to, struct lk_cache *from, lk_err *err) {
    lk_cache_clear(to);
    lk_cache_trim(from);
    bool ok = true;
    int n_layer = from->shape.n_layer;
    for (int layer = 0; ok && layer < n_layer; layer++)
        for (int side = 0; ok && side < 2; side++)
            for (int i = 0; ok && i < from->kv[layer][side].n_level; i++)
                ok = lk_cache_has_room(to, &to->kv[layer][side].level[i],
                                       from->kv[layer][side].level[i].n_block);
    for (int layer = 0; ok && layer < n_layer; layer++) {
        ok = lk_evict_reserve(&to->evict[layer], to->ledger, from->evict[layer].n);
        if (ok) lk_evict_copy(&to->evict[layer], &from->evict[layer]);
    }
    ok = ok && lk_pool_share(&to->pool, &from->pool);
    for (int layer = 0; ok && layer < n_layer; layer++)
        for (int side = 0; side < 2; side++)
            copy_stream(to, &to->kv[layer][side], &from->kv[layer][side]);
    if (ok) return LK_OK;
    lk_cache_clear(to);
    return lk_fail(err, LK_E_NOMEM, "no memory for a copy of a cache of %lld tokens",
                   (long long)from->kv[0][LK_K].n_tok);
}

uint64_t lk_cache_immutable_bytes(const struct lk_cache *cache) {
    uint64_t sum = 0;
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            for (int i = 0; i < kv->n_level && !kv->n_swa; i++) {
                const struct lk_level_rule *rule = &kv->rule[i];
                if (rule->batch || rule->limit.policy.keep != LK_POLICY_NONE) continue;
                sum += (kv->fill[i].skip + kv->fill[i].rows) / rule->block_rows *
                       kv->level[i].block_bytes;
            }
        }
    return sum;
}

/* ---- memory for what is to come ---- */

/* Blocks that a level needs besides those more that it will hold, because some that it holds are shared: what is
 * written to gives way to a copy, and what leaves is not free for rows that come. come, leave, replaced: the
 * most rows that do. */
static int64_t want_for_shared(struct lk_cache *cache, const struct lk_kv *kv, int i, int64_t come,
                               int64_t leave, int64_t replaced) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_fill *fill = &kv->fill[i];
    int block_rows = kv->rule[i].block_rows;
    int64_t n = 0, gone = leave ? (fill->skip + leave + block_rows - 1) / block_rows : 0,
            writes = replaced * cache->shape.n_head_kv;
    if (come && (fill->skip + fill->rows) % block_rows) writes++;
    for (int64_t b = level->n_block - 1; b >= gone && writes > 0;
         b--) { /* the last one first: it is the one that is filled */
        bool shared = lk_pool_is_shared(&cache->pool, level->block_bytes, level->block[b]);
        n += shared;
        writes -= shared || replaced == 0;
    }
    for (int64_t b = 0; b < gone && b < level->n_block; b++)
        n += !lk_pool_is_reusable(&cache->pool, level->block_bytes, level->block[b]);
    return n;
}

bool lk_cache_reserve_shared(struct lk_cache *cache, const struct lk_kv *kv,
                             const struct lk_fill *after, int64_t n_new, int64_t first) {
    int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level), come = n_new,
            replaced = kv->evict ? first - kv->first : 0;
    if (cache->pool.n_shared == 0) return true;
    for (int i = kv->n_level - 1; i >= 0; i--) {
        int64_t leave = come + kv->fill[i].rows - after[i].rows;
        if (leave < 0) leave = 0;
        bool limited = kv->rule[i].limit.policy.keep != LK_POLICY_NONE;
        int64_t n = want_for_shared(cache, kv, i, come, leave, limited ? replaced : 0);
        if (n && !lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n)) return false;
        come = i == 1 && n_sink ? (kv->n_tok < n_sink ? n_new : 0) : leave;
    }
    return true;
}
