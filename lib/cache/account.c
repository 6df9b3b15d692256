/* Accounting: bytes that a cache holds, and estimates. */
#include "cache/account.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/latent_levels.h"
#include "cache/latent_there.h"
#include "cache/move_project.h"
#include "device/commands.h"

#include <string.h>

struct lk_cache_bytes lk_cache_count_bytes(const struct lk_cache *cache) {
    struct lk_cache_bytes sum = {0};
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        sum.scale += lk_evict_bytes(&cache->evict[layer], cache->evict[layer].n);
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < 2; i++) sum.scale += lk_equalizer_bytes(&kv->equalizer[i]);
        for (int i = 0; i < kv->n_level; i++) {
            const struct lk_level *level = &kv->level[i];
            const struct lk_level_rule *rule = &kv->rule[i];
            int64_t n_block = lk_held_blocks(kv, i);
            uint64_t scales = n_block * level->scale_bytes,
                     rest = n_block * level->block_bytes - scales;
            int64_t capacity = n_block * rule->block_rows;
            uint64_t used = capacity ? rest * lk_held_rows(kv, i) / capacity : 0;
            if (rule->codec.coding == LK_F16 && !level->basis)
                sum.exact += used;
            else
                sum.code += used;
            sum.scale += scales;
        }
    }
    sum.padding = lk_ledger_bytes(cache->ledger, LK_FOR_CACHE) +
                  atomic_load(&cache->ledger->borrowed) - sum.code - sum.scale - sum.exact;
    const struct lk_ledger *device = cache->shape.device ? cache->shape.device_ledger : NULL;
    if (device)
        sum.padding += lk_ledger_bytes(device, LK_FOR_CACHE) + atomic_load(&device->borrowed) -
                       cache->there_bytes;
    return sum;
}

uint64_t lk_cache_immutable_bytes(const struct lk_cache *cache) {
    uint64_t sum = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level && !kv->n_swa; i++) {
            const struct lk_level_rule *rule = &kv->rule[i];
            if (rule->batch || rule->limit.policy.kind != LK_POLICY_NONE) continue;
            int64_t n_full = (kv->count[i].skip + kv->count[i].rows) / rule->block_rows,
                    n = lk_held_blocks(kv, i);
            if (kv->level[i].n_block > n_full) n -= lk_held_has_block(kv, i, n_full);
            sum += n * kv->level[i].block_bytes;
        }
    }
    return sum;
}

uint64_t lk_cache_row_bytes(const struct lk_cache *cache) {
    uint64_t sum = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        uint64_t bytes = 0, n_share = kv->share.n > 1 ? (uint64_t)kv->share.n : 1;
        for (int i = 0; i < kv->n_level; i++)
            bytes += (uint64_t)kv->count[i].rows * kv->level[i].block_bytes /
                     (uint64_t)kv->rule[i].block_rows;
        sum += bytes / n_share;
    }
    return sum;
}

uint64_t lk_cache_f16_bytes(const struct lk_cache_shape *shape, int64_t n_tok) {
    uint64_t values = 0;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        bool swa = shape->is_swa && shape->is_swa[layer];
        uint64_t rows = swa && n_tok > shape->n_swa ? shape->n_swa : n_tok;
        values += rows * lk_cache_n_head(shape, layer) *
                  (lk_cache_d_head(shape, layer, LK_K) + lk_cache_d_head(shape, layer, LK_V));
    }
    return values * sizeof(uint16_t);
}

struct lk_cache_widths lk_cache_max_widths(const struct lk_cache *cache) {
    struct lk_cache_widths max = {0};
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->d_head > max.part) max.part = kv->d_head;
        for (int i = 0; i < kv->n_level; i++) {
            const struct lk_level *level = &kv->level[i];
            if (level->d_part > max.part) max.part = level->d_part;
            if (level->basis && kv->side == LK_V && level->d_part > max.latent)
                max.latent = level->d_part;
        }
    }
    return max;
}

struct lk_evict_scratch lk_evict_scratch(const struct lk_cache *cache, int64_t n_tok) {
    bool evicts = false, needs_scores = false;
    int n_head = 0;
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_evict *evict = cache->kv[layer][LK_K].evict;
        evicts |= evict != NULL;
        needs_scores |= evict && evict->needs_scores;
        if (evict && evict->n_head > n_head) n_head = evict->n_head;
    }
    size_t n = (size_t)n_tok * n_head;
    return (struct lk_evict_scratch){.attn_scores = needs_scores * n * sizeof(float),
                                     .ranked = evicts * n * sizeof(struct lk_scored_row)};
}

/* ---- estimates ---- */

/* Reserve the blocks of n_tok tokens in the pool, and add the bytes of tables to *bytes. */
static bool estimate_kv(struct lk_cache *cache, struct lk_kv *kv, int64_t n_tok, uint64_t *bytes) {
    bool ok = true;
    lk_level_advance(kv->rule, kv->count, kv->n_level, 0, n_tok, kv->n_swa, &kv->first, NULL);
    bool whole = lk_held_collects(kv, kv->count);
    if (kv->evict && kv->side == LK_K && !kv->is_elsewhere)
        *bytes += lk_evict_bytes(kv->evict, n_tok - kv->first);
    for (int i = 0; i < kv->n_level; i++) {
        int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->count[i]);
        *bytes += n_block * LK_BLOCK_TABLE_BYTES;
        n_block = whole ? n_block : lk_held_max_blocks(kv, i, n_block);
        ok &= lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n_block);
    }
    memset(kv->count, 0, sizeof kv->count);
    return ok;
}

/* Bytes of what a call of attention reads of K or V of a layer besides rows: addresses of blocks,
 * codings, statistics, positions, the matrix of the rotation. */
static uint64_t packet_bytes(const struct lk_kv *kv, int64_t n_tok) {
    enum { CODINGS = sizeof(struct lk_device_move_rows) + sizeof(struct lk_device_coding) };
    uint64_t bytes = 2048; /* levels of trellises, slopes, sinks, gaps */
    bool evicts_latents = false;
    for (int i = 0; i < kv->n_level; i++) {
        int64_t n_block = n_tok / kv->rule[i].block_rows + 2;
        bytes += (uint64_t)n_block * sizeof(uint64_t) + sizeof(struct lk_device_restore) +
                 (uint64_t)kv->level[i].n_part * CODINGS;
        evicts_latents |= kv->level[i].rope && kv->evict;
    }
    for (int i = 0; i < 2; i++) bytes += 2 * lk_equalizer_array_bytes(&kv->equalizer[i]);
    if (evicts_latents) bytes += (uint64_t)n_tok * kv->n_head * sizeof(int32_t);
    if (kv->d_head & (kv->d_head - 1)) bytes += (uint64_t)kv->d_head * kv->d_head * sizeof(float);
    return bytes;
}

/* What a cache has on a device besides blocks. */
static void estimate_there(const struct lk_cache *cache, const struct lk_device *device,
                           int64_t n_tok, struct lk_cache_needs *needs) {
    needs->n_range = 1;
    if (device->uses_host) return;
    needs->device_scratch = lk_projecting_bytes(cache);
    needs->device_shared = lk_latents_there_estimate(cache, device);
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv((struct lk_cache *)cache, k);
        for (int i = 0; i < 2; i++)
            needs->device_scratch += lk_equalizer_array_bytes(&kv->equalizer[i]);
        needs->device_packets += packet_bytes(kv, n_tok);
        int n_range = (lk_kv_mixes_sigma(kv) ? 2 : 1) *
                      (lk_kv_mixes_sigma(lk_cache_kv((struct lk_cache *)cache, k ^ 1)) ? 2 : 1);
        if (n_range > needs->n_range) needs->n_range = n_range;
    }
}

lk_status lk_cache_estimate(const struct lk_recipe *recipe, const struct lk_cache_shape *shape,
                            int64_t n_tok, struct lk_cache_needs *out, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_cache_shape in_ram = *shape; /* counts need no memory of a device */
    in_ram.device = NULL;
    struct lk_cache *cache;
    lk_status status = lk_cache_alloc(&cache, recipe, &in_ram, &ledger, err);
    if (status) return status;
    if (shape->device) cache->pool.slab_bytes = shape->device->slab_bytes;
    uint64_t bytes = lk_ledger_bytes(&ledger, LK_FOR_CACHE), slabs = 0;
    bool ok = true, evicts = false;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) evicts |= lk_cache_kv(cache, k)->evict != NULL;
    for (int k = 0; k < lk_cache_n_kv(cache); k++)
        ok &= estimate_kv(cache, lk_cache_kv(cache, k), n_tok, &bytes);
    for (int i = 0; i < cache->pool.n_class; i++) {
        const struct lk_pool_class *class = &cache->pool.class[i];
        uint64_t n_slab = (class->n_reserved + class->n_block - 1) / class->n_block;
        n_slab += shape->device != NULL; /* steps hold blocks for rows that will come */
        slabs += n_slab * lk_pool_slab_bytes(class);
    }
    uint64_t own, shared;
    lk_latent_levels_estimate(cache, &own, &shared);
    struct lk_cache_needs needs = {.cache = bytes + slabs,
                                   .device = shape->device ? slabs : 0,
                                   .scratch = lk_ledger_bytes(&ledger, LK_FOR_SCRATCH) + own,
                                   .latents = shared,
                                   .derived = own,
                                   .evicts = evicts,
                                   .evict_scratch = lk_evict_scratch(cache, n_tok),
                                   .width = lk_cache_max_widths(cache)};
    if (shape->device) estimate_there(cache, shape->device, n_tok, &needs);
    lk_cache_free(cache);
    if (!ok)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the recipe needs more than %d block sizes; use fewer different codecs",
                       LK_POOL_CLASSES);
    *out = needs;
    return LK_OK;
}
