/* Memory of a cache: block tables, blocks, and reservations. */
#include "cache/cache_memory.h"

#include "cache/cache.h"

#include <string.h>

size_t lk_cache_max_block_bytes(const struct lk_cache *cache) {
    size_t max = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++)
        for (int i = 0; i < lk_cache_kv(cache, k)->n_level; i++) {
            size_t n = lk_cache_kv(cache, k)->level[i].block_bytes;
            if (n > max) max = n;
        }
    return max;
}

bool lk_cache_grow_table(struct lk_cache *cache, struct lk_level *level, int64_t n_block) {
    if (n_block <= level->cap) return true;
    int64_t cap = n_block + n_block / 8 + 4;
    if (!lk_grow(cache->ledger, LK_FOR_CACHE, (void **)&level->block,
                 level->cap * sizeof *level->block, cap * sizeof *level->block))
        return false;
    level->cap = cap;
    return true;
}

bool lk_cache_add_block(struct lk_cache *cache, struct lk_level *level, bool held) {
    if (!lk_cache_grow_table(cache, level, level->n_block + 1)) return false;
    lk_block block = held ? lk_pool_alloc(&cache->pool, level->block_bytes) : 0;
    if (block || !held) level->block[level->n_block++] = block;
    return block || !held;
}

void lk_cache_clear_block(struct lk_cache *cache, const struct lk_level *level, int64_t b) {
    struct lk_device *device = cache->shape.device;
    char *block = lk_block_at(&cache->pool.arena, level->block[b]);
    if (device)
        lk_arena_note(&cache->pool.arena, device->call->clear(device, (uint64_t)(uintptr_t)block,
                                                              level->block_bytes, NULL));
    else
        memset(block, 0, level->block_bytes);
}

void lk_cache_divide(struct lk_cache *cache, struct lk_kv *kv) {
    kv->has_all_rows = false;
    for (int i = 0; i < kv->n_level; i++)
        for (int64_t b = 0; b < kv->level[i].n_block; b++) {
            if (lk_held_has_block(kv, i, b)) continue;
            lk_pool_free(&cache->pool, kv->level[i].block[b]);
            kv->level[i].block[b] = 0;
        }
}

bool lk_cache_make_writable(struct lk_cache *cache, struct lk_level *level, int64_t b) {
    lk_block block = lk_pool_make_writable(&cache->pool, level->block[b]);
    if (block) level->block[b] = block;
    return block;
}

/* ---- rows on their way to a device ---- */

static size_t staging_bytes(const struct lk_cache *cache, enum lk_side side, int64_t n) {
    return (size_t)n * lk_cache_width(&cache->shape, side) * sizeof(float);
}

bool lk_cache_reserve_staging(struct lk_cache *cache, enum lk_side side, int64_t n) {
    struct lk_device *device = cache->shape.device;
    if (!device || n <= cache->staging[side].n_row) return true;
    lk_cache_free_staging(cache, side);
    if (!lk_ledger_add(cache->shape.device_ledger, LK_FOR_SCRATCH, staging_bytes(cache, side, n)))
        return false;
    cache->staging[side].n_row = n;
    if (!device->call->alloc(device, staging_bytes(cache, side, n), &cache->staging[side].at, NULL))
        return true;
    lk_cache_free_staging(cache, side);
    return false;
}

void lk_cache_free_staging(struct lk_cache *cache, enum lk_side side) {
    struct lk_device *device = cache->shape.device;
    size_t size = staging_bytes(cache, side, cache->staging[side].n_row);
    if (size == 0) return;
    if (cache->staging[side].at) device->call->free(device, cache->staging[side].at, size);
    lk_ledger_remove(cache->shape.device_ledger, LK_FOR_SCRATCH, size);
    cache->staging[side].at = 0;
    cache->staging[side].n_row = 0;
}

const float *lk_cache_upload_rows(struct lk_cache *cache, enum lk_side side, const float *x,
                                  int64_t n, size_t width) {
    struct lk_device *device = cache->shape.device;
    if (!lk_cache_reserve_staging(cache, side, n)) return NULL;
    lk_arena_note(&cache->pool.arena, device->call->upload(device, cache->staging[side].at, x,
                                                           (size_t)n * width * sizeof *x, NULL));
    return (const float *)(uintptr_t)cache->staging[side].at;
}

/* ---- reservations ---- */

/* Rows that arrive in a level, leave it or are replaced in it, at most. */
struct changes {
    int64_t n_in, n_out, n_replaced;
};

/* Blocks that a level needs in addition to its growth because some of its blocks are shared. A
 * shared block that is written to is replaced by a copy. A shared block that leaves the level does
 * not become free for new rows. */
static int64_t count_copies(struct lk_cache *cache, const struct lk_kv *kv, int i,
                            struct changes c) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_level_count *count = &kv->count[i];
    int block_rows = kv->rule[i].block_rows;
    int64_t n = 0, n_gone = c.n_out ? (count->skip + c.n_out + block_rows - 1) / block_rows : 0,
            n_write = c.n_replaced * kv->n_head;
    if (c.n_in && (count->skip + count->rows) % block_rows) n_write++;
    /* From the last block, which new rows are appended to. */
    for (int64_t b = level->n_block - 1; b >= n_gone && n_write > 0; b--) {
        bool shared = level->block[b] && lk_pool_is_shared(&cache->pool, level->block[b]);
        n += shared;
        n_write -= shared || c.n_replaced == 0;
    }
    for (int64_t b = 0; b < n_gone && b < level->n_block; b++)
        n += level->block[b] && !lk_pool_is_reusable(&cache->pool, level->block[b]);
    return n;
}

/* Reserve blocks for copies when n_new rows arrive, `after` [n_level] are the counts that follow
 * and rows up to `first` are evicted. False if the pool cannot have blocks of that size. */
static bool reserve_copies(struct lk_cache *cache, const struct lk_kv *kv,
                           const struct lk_level_count *after, int64_t n_new, int64_t first) {
    int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level), n_in = n_new;
    if (cache->pool.n_shared == 0) return true;
    for (int i = kv->n_level - 1; i >= 0; i--) {
        struct changes c = {.n_in = n_in, .n_out = n_in + kv->count[i].rows - after[i].rows};
        if (c.n_out < 0) c.n_out = 0;
        if (kv->evict && kv->rule[i].limit.policy.kind != LK_POLICY_NONE)
            c.n_replaced = first - kv->first;
        int64_t n = count_copies(cache, kv, i, c);
        if (!lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n)) return false;
        n_in = i == 1 && n_sink ? (kv->n_tok < n_sink ? n_new : 0) : c.n_out;
    }
    return true;
}

/* Reserve what n_new rows in portions of at most `portion` need: the maximum number of blocks that
 * this process holds at a time. */
static bool reserve_kv(struct lk_cache *cache, struct lk_kv *kv, struct lk_evict *evict,
                       int64_t n_new, int64_t portion) {
    struct lk_level_count count[LK_MAX_KV_LEVEL];
    /* While this process holds all rows, and over the whole time. */
    int64_t max_whole[LK_MAX_KV_LEVEL] = {0}, max_blocks[LK_MAX_KV_LEVEL] = {0};
    int64_t first = kv->first, max_rows = 0;
    bool whole = kv->has_all_rows;
    memcpy(count, kv->count, sizeof count);
    for (int64_t done = 0; done < n_new;) {
        int64_t n = n_new - done < portion ? n_new - done : portion, n_tok = kv->n_tok + done;
        if (max_rows < n_tok + n - first) max_rows = n_tok + n - first;
        lk_level_advance(kv->rule, count, kv->n_level, n_tok, n, kv->n_swa, &first, max_blocks);
        if (whole) memcpy(max_whole, max_blocks, sizeof max_whole);
        whole = whole && lk_held_collects(kv, count);
        done += n;
    }
    if (kv->evict && !kv->is_elsewhere && !lk_evict_reserve(evict, cache->ledger, max_rows))
        return false;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_level *level = &kv->level[i];
        int64_t own = lk_held_max_blocks(kv, i, max_blocks[i]);
        int64_t n_more = (own > max_whole[i] ? own : max_whole[i]) - lk_held_blocks(kv, i);
        if (!lk_cache_grow_table(cache, level, max_blocks[i])) return false;
        if (n_more > 0 && !lk_pool_reserve(&cache->pool, level->block_bytes, n_more)) return false;
    }
    return reserve_copies(cache, kv, count, n_new, first);
}

lk_status lk_cache_prepare(struct lk_cache *cache, int layer0, int layer1, int64_t n_new,
                           int64_t portion, lk_err *err) {
    lk_pool_unreserve(&cache->pool);
    cache->reserved = 0;
    bool ok = true;
    for (int i = 2 * layer0; ok && i < 2 * layer1; i++)
        ok = reserve_kv(cache, lk_cache_kv(cache, i), &cache->evict[i / 2], n_new, portion);
    for (int side = 0; ok && side < 2; side++) ok = lk_cache_reserve_staging(cache, side, portion);
    if (ok && lk_pool_commit(&cache->pool)) return LK_OK;
    lk_pool_unreserve(&cache->pool);
    lk_pool_trim(&cache->pool);
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for %lld more tokens of cache; use a smaller recipe or context",
                   (long long)n_new);
}

lk_status lk_cache_reserve(struct lk_cache *cache, int64_t n_new, lk_err *err) {
    lk_status status = lk_cache_prepare(cache, 0, cache->shape.n_layer, n_new, 1, err);
    if (status) return status;
    cache->reserved = n_new;
    cache->pool.keep_free = true;
    return LK_OK;
}

void lk_cache_trim(struct lk_cache *cache) {
    cache->reserved = 0;
    lk_pool_unreserve(&cache->pool);
    lk_pool_trim(&cache->pool);
}

lk_status lk_cache_alloc_blocks(struct lk_cache *cache, int layer, lk_err *err) {
    lk_pool_unreserve(&cache->pool);
    cache->reserved = 0;
    bool ok = true;
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        for (int i = 0; ok && i < kv->n_level; i++) {
            int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->count[i]);
            int64_t n_held = kv->has_all_rows ? n_block : lk_held_max_blocks(kv, i, n_block);
            ok = lk_cache_grow_table(cache, &kv->level[i], n_block) &&
                 lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n_held);
        }
    }
    ok = ok && lk_pool_commit(&cache->pool);
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        for (int i = 0; ok && i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->count[i]);
            while (ok && level->n_block < n_block)
                ok = lk_cache_add_block(cache, level, lk_held_has_block(kv, i, level->n_block));
            /* Kernels multiply the rows of a tile before the level's first row by zero. They must
             * not be NaN. */
            if (ok && n_block && kv->count[i].skip && level->block[0])
                lk_cache_clear_block(cache, level, 0);
        }
    }
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for the cache of layer %d; use a smaller recipe or context", layer);
}
