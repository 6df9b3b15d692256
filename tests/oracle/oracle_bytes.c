/* What a cache holds beyond the bytes that a plan counts. */
#include "oracle_bytes.h"

uint64_t oracle_table_slack(const struct lk_cache *cache) {
    uint64_t slack = 0;
    for (int i = 0; i < cache->pool.n_class; i++) {
        const struct lk_pool_class *class = &cache->pool.class[i];
        slack += ((uint64_t) class->cap * sizeof(lk_block) + 63) / 64 * 64;
    }
    for (int i = 0; i < 32 && cache->pool.arena.page[i]; i++)
        slack += ((sizeof(struct lk_slab) << i) + 63) / 64 * 64;
    for (int i = 0; i < lk_cache_n_kv(cache); i++) {
        const struct lk_kv *kv = lk_cache_kv(cache, i);
        const struct lk_evict *evict = &cache->evict[i / 2];
        for (int l = 0; l < kv->n_level; l++)
            slack += ((uint64_t)kv->level[l].cap * sizeof(lk_block) + 63) / 64 * 64 -
                     (uint64_t)kv->level[l].n_block * LK_BLOCK_TABLE_BYTES;
        if (!kv->evict || i % 2) continue;
        uint64_t row = (uint64_t)evict->n_head * sizeof *evict->pos;
        slack += ((uint64_t)evict->cap_pos * row + 63) / 64 * 64 +
                 ((uint64_t)evict->cap_score * row + 63) / 64 * 64 -
                 lk_evict_bytes(evict, evict->n);
    }
    return slack;
}

uint64_t oracle_free_slabs(const struct lk_cache *cache) {
    uint64_t bytes = 0;
    for (int i = 0; i < cache->pool.n_class; i++) {
        const struct lk_pool_class *class = &cache->pool.class[i];
        uint64_t used = 0;
        for (int k = 0; k < lk_cache_n_kv(cache); k++) {
            const struct lk_kv *kv = lk_cache_kv(cache, k);
            for (int l = 0; l < kv->n_level; l++)
                if (kv->level[l].block_bytes == class->size) used += (uint64_t)kv->level[l].n_block;
        }
        bytes += (class->n_slab - (used + class->n_block - 1) / class->n_block) *
                 lk_pool_slab_bytes(class);
    }
    return bytes;
}
