/* Copies of a cache that share its blocks. */
#include "cache/cache_copy.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/latent_levels.h"

#include <string.h>

/* Make the empty `to`, whose block tables have room, hold the blocks of `from`. */
static void copy_kv(struct lk_kv *to, const struct lk_kv *from) {
    for (int i = 0; i < from->n_level; i++) {
        struct lk_level *level = &to->level[i];
        level->n_block = from->level[i].n_block;
        if (level->n_block)
            memcpy(level->block, from->level[i].block, level->n_block * sizeof *level->block);
        to->count[i] = from->count[i];
    }
    to->first = from->first;
    to->n_tok = from->n_tok;
    to->holds_all_rows = from->holds_all_rows;
    for (int i = 0; i < 2; i++) lk_equalizer_copy(&to->equalizer[i], &from->equalizer[i]);
    lk_latent_levels_restore(to);
}

lk_status lk_cache_copy(struct lk_cache *to, struct lk_cache *from, lk_err *err) {
    lk_cache_clear(to);
    lk_cache_trim(from);
    bool ok = true;
    int n_layer = from->shape.n_layer, n_kv = lk_cache_n_kv(from);
    for (int k = 0; ok && k < n_kv; k++)
        for (int i = 0; ok && i < lk_cache_kv(from, k)->n_level; i++)
            ok = lk_cache_grow_table(to, &lk_cache_kv(to, k)->level[i],
                                     lk_cache_kv(from, k)->level[i].n_block);
    for (int layer = 0; ok && layer < n_layer; layer++) {
        ok = lk_evict_reserve(&to->evict[layer], to->ledger, from->evict[layer].n);
        if (ok) lk_evict_copy(&to->evict[layer], &from->evict[layer]);
    }
    ok = ok && lk_pool_share(&to->pool, &from->pool);
    for (int k = 0; ok && k < n_kv; k++) copy_kv(lk_cache_kv(to, k), lk_cache_kv(from, k));
    if (ok) return LK_OK;
    lk_cache_clear(to);
    return lk_fail(err, LK_E_NOMEM, "no memory for a copy of a cache of %lld tokens",
                   (long long)from->kv[0][LK_K].n_tok);
}
