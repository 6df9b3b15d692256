/* One cache made like another. */
#include "cache/calibrate.h"
#include "cache/unfold.h"

#include <string.h>

/* Copy `from` into the empty stream `to`, for which the pool holds enough blocks. */
static int copy_stream(struct lk_cache *cache, struct lk_stream *to, const struct lk_stream *from) {
    for (int i = 0; i < from->n_level; i++) {
        struct lk_level *level = &to->level[i];
        for (int64_t b = 0; b < from->level[i].n_block; b++) {
            void *block = lk_pool_take(&cache->pool, level->block_bytes);
            if (!block) return 0;
            memcpy(block, from->level[i].block[b], level->block_bytes);
            level->block[level->n_block++] = block;
        }
        to->fill[i] = from->fill[i];
    }
    to->first = from->first;
    to->n_tok = from->n_tok;
    for (int i = 0; i < 2; i++) lk_equaliser_copy(&to->equaliser[i], &from->equaliser[i]);
    for (int i = 0; i < to->n_level; i++)
        for (int part = 0; lk_equaliser_of(to, i)->calibrated && part < to->level[i].n_part; part++)
            lk_unfold_prepare(to, i, part, cache->shape.d_head);
    return 1;
}

lk_status lk_cache_copy(struct lk_cache *to, const struct lk_cache *from, lk_err *err) {
    lk_cache_clear(to);
    int ok = 1, n_layer = from->shape.n_layer;
    for (int layer = 0; ok && layer < n_layer; layer++)
        for (int side = 0; ok && side < 2; side++)
            for (int i = 0; ok && i < from->stream[layer][side].n_level; i++) {
                struct lk_level *level = &to->stream[layer][side].level[i];
                int64_t n_block = from->stream[layer][side].level[i].n_block;
                ok = lk_cache_has_room(to, level, n_block) && lk_pool_want(&to->pool, level->block_bytes, n_block);
            }
    for (int layer = 0; ok && layer < n_layer; layer++) {
        ok = lk_slots_room(&to->slots[layer], to->ledger, from->slots[layer].n);
        if (ok) lk_slots_copy(&to->slots[layer], &from->slots[layer]);
    }
    ok = ok && lk_pool_fill(&to->pool);
    for (int layer = 0; ok && layer < n_layer; layer++)
        for (int side = 0; ok && side < 2; side++) ok = copy_stream(to, &to->stream[layer][side], &from->stream[layer][side]);
    if (!ok) lk_cache_clear(to);
    lk_cache_trim(to);
    return ok ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for a copy of a cache of %lld tokens", (long long)from->stream[0][LK_K].n_tok);
}
