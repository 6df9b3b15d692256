/* The cache of one session: creating, clearing, appending, aging and truncating. */
#include "cache/cache.h"

#include "cache/equalizer.h"
#include "cache/latent_levels.h"
#include "cache/move.h"
#include "cache/move_project.h"
#include "device/commands.h"

#include <string.h>

/* Scratch of K or of V: rows that are being moved, and their latents. */
static size_t scratch_bytes(const struct lk_cache *cache, enum lk_side side) {
    return 2 * LK_MAX_MOVE * lk_cache_width(&cache->shape, side) * sizeof(float);
}

/* Latents can only be truncated when they age, so an older level has at most the rank of the newer
 * one. Ranks may come from the sidecar, so the recipe alone does not tell. */
static lk_status check_rank(const struct lk_kv *kv, int older, int layer, lk_err *err) {
    const struct lk_level *a = &kv->level[older], *b = &kv->level[older + 1];
    bool sinks = older == 0 && lk_level_sinks(kv->rule, kv->n_level) > 0,
         none = lk_limit_is_zero(&kv->rule[older].limit), ok = a->basis == b->basis;
    if (sinks || none || !b->basis) return LK_OK;
    for (int part = 0; ok && part < a->n_part; part++)
        ok = lk_level_part_channels(a, part) <= lk_level_part_channels(b, part);
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "layer %d: a level of %s has rank %d, but its rows come from a newer level of "
                   "rank %d; use at most the newer level's rank",
                   layer, kv->side == LK_K ? "K" : "V", a->d_part, b->d_part);
}

static int common_multiple(int a, int b) {
    int n = a;
    while (n % b) n += a;
    return n;
}

/* The layer evicts from a level whose parts are n_head heads each. */
static const struct lk_evict *init_evict(struct lk_cache *cache, int layer,
                                         const struct lk_policy *policy, int n_head) {
    struct lk_evict *evict = &cache->evict[layer];
    evict->policy = *policy;
    evict->policy.seed = (uint32_t)layer;
    evict->n_head = cache->kv[layer][LK_K].n_head;
    evict->unit = common_multiple(evict->unit ? evict->unit : 1, n_head);
    enum lk_policy_scores needed = lk_policy_needed_scores(policy);
    evict->needs_scores = needed != LK_SCORES_NONE;
    evict->adds_scores = evict->needs_scores && needed != LK_SCORES_REPLAY;
    return evict;
}

static lk_status init_kv(struct lk_cache *cache, const struct lk_recipe *recipe, int layer,
                         enum lk_side side, lk_err *err) {
    const struct lk_cache_shape *shape = &cache->shape;
    struct lk_kv *kv = &cache->kv[layer][side];
    bool swa = shape->is_swa && shape->is_swa[layer];
    kv->side = side;
    kv->n_head = lk_cache_n_head(shape, layer);
    kv->d_head = lk_cache_d_head(shape, layer, side);
    kv->n_swa = swa ? shape->n_swa : 0;
    const struct lk_place *place = &shape->place;
    kv->holder = place->holder ? place->holder[layer] : 0;
    kv->is_elsewhere = place->holder && kv->holder != place->own;
    unsigned kind = (swa ? LK_RULES_SLIDING : 0) | (shape->d_rope > 0 ? LK_RULES_FINE_K : 0);
    kv->n_level = lk_level_rules(recipe, layer, shape->n_layer, side, kind, shape->n_ctx, kv->rule);
    kv->arena = &cache->pool.arena;
    kv->rows = cache->rows[side];
    kv->out = cache->rows[side] + LK_MAX_MOVE * lk_cache_width(shape, side);
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level_rule *rule = &kv->rule[i];
        bool limited = rule->limit.policy.kind != LK_POLICY_NONE &&
                       (recipe->absorbs || !lk_limit_is_zero(&rule->limit));
        lk_status status =
            lk_level_layout(&kv->level[i], rule, shape, layer, side, cache->ledger, err);
        if (!status && i > 0) status = check_rank(kv, i - 1, layer, err);
        if (!status && rule->codec.sigma) status = lk_equalizer_add(kv, i, cache->ledger, err);
        if (status) return status;
        if (limited && !kv->n_swa)
            kv->evict = init_evict(cache, layer, &rule->limit.policy, kv->level[i].n_head);
    }
    if (!swa && !kv->evict) kv->share = place->share; /* the others hold a limited number of rows */
    kv->has_all_rows = lk_held_collects(kv, kv->count);
    return LK_OK;
}

/* Room on the device for the channel statistics of all kv. */
static bool alloc_sigma(struct lk_cache *cache) {
    struct lk_device *device = cache->shape.device;
    size_t size = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++)
        for (int i = 0; i < 2; i++)
            size += lk_equalizer_array_bytes(&lk_cache_kv(cache, k)->equalizer[i]);
    if (size == 0) return true;
    if (!lk_ledger_add(cache->shape.device_ledger, LK_FOR_SCRATCH, size)) return false;
    if (device->call->alloc(device, size, &cache->sigma_at, NULL)) {
        lk_ledger_remove(cache->shape.device_ledger, LK_FOR_SCRATCH, size);
        return false;
    }
    cache->sigma_bytes = size;
    uint64_t at = cache->sigma_at;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < 2; i++) {
            if (kv->equalizer[i].sigma) kv->sigma_at[i] = at;
            at += lk_equalizer_array_bytes(&kv->equalizer[i]);
        }
    }
    return true;
}

/* Room for the blocks of a device that the CPU reads, and for commands. */
static lk_status alloc_device_room(struct lk_cache *cache, lk_err *err) {
    size_t size = lk_cache_max_block_bytes(cache);
    bool commands = !cache->shape.device->uses_host, ok = true;
    for (int side = 0; side < 2 && ok; side++) {
        cache->copy[side] = lk_alloc(cache->ledger, LK_FOR_SCRATCH, size);
        if (commands)
            cache->command[side] = lk_alloc(cache->ledger, LK_FOR_SCRATCH,
                                            LK_LIST_MOVES * sizeof *cache->command[side]);
        ok = cache->copy[side] && (!commands || cache->command[side]);
    }
    if (!ok) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    if (commands && (!alloc_sigma(cache) || !lk_projecting_new(cache)))
        return lk_fail(err, LK_E_NOMEM, "no memory on %s for a cache", cache->shape.device->name);
    for (int k = 0; k < lk_cache_n_kv(cache); k++) lk_cache_kv(cache, k)->copy = cache->copy[k % 2];
    return LK_OK;
}

static void free_device_room(struct lk_cache *cache) {
    struct lk_device *device = cache->shape.device;
    for (int side = 0; side < 2; side++) {
        if (cache->copy[side])
            lk_release(cache->ledger, LK_FOR_SCRATCH, cache->copy[side],
                       lk_cache_max_block_bytes(cache));
        if (cache->command[side])
            lk_release(cache->ledger, LK_FOR_SCRATCH, cache->command[side],
                       LK_LIST_MOVES * sizeof *cache->command[side]);
        lk_cache_free_staging(cache, side);
    }
    lk_projecting_free(cache);
    if (cache->sigma_bytes == 0) return;
    device->call->free(device, cache->sigma_at, cache->sigma_bytes);
    lk_ledger_remove(cache->shape.device_ledger, LK_FOR_SCRATCH, cache->sigma_bytes);
}

static void add_width(struct lk_cache *cache, const struct lk_kv *kv) {
    int *widest = &cache->d_part[kv->side];
    if (kv->d_head > *widest) *widest = kv->d_head;
    for (int i = 0; i < kv->n_level; i++)
        if (kv->level[i].d_part > *widest) *widest = kv->level[i].d_part;
}

lk_status lk_cache_alloc(struct lk_cache **out, const struct lk_recipe *recipe,
                         const struct lk_cache_shape *shape, struct lk_ledger *ledger,
                         lk_err *err) {
    struct lk_cache *cache = lk_alloc(ledger, LK_FOR_OTHER, sizeof *cache);
    if (!cache) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    cache->ledger = ledger;
    cache->shape = *shape;
    cache->kernels = lk_kernels_choose(NULL); /* all kernels encode to the same bits */
    lk_pool_init(&cache->pool, shape->device ? shape->device->slab_bytes : LK_SLAB_BYTES, ledger);
    if (shape->device) lk_pool_use_device(&cache->pool, shape->device, shape->device_ledger);
    cache->kv = lk_alloc(ledger, LK_FOR_OTHER, shape->n_layer * sizeof *cache->kv);
    cache->evict = lk_alloc(ledger, LK_FOR_OTHER, shape->n_layer * sizeof *cache->evict);
    for (int side = 0; side < 2; side++)
        cache->rows[side] = lk_alloc(ledger, LK_FOR_SCRATCH, scratch_bytes(cache, side));
    lk_status status = LK_OK;
    if (!cache->kv || !cache->evict || !cache->rows[LK_K] || !cache->rows[LK_V])
        status = lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    for (int i = 0; !status && i < lk_cache_n_kv(cache); i++)
        status = init_kv(cache, recipe, i / 2, i % 2, err);
    for (int i = 0; !status && i < lk_cache_n_kv(cache); i++)
        add_width(cache, lk_cache_kv(cache, i));
    if (!status && shape->device) status = alloc_device_room(cache, err);
    if (status)
        lk_cache_free(cache);
    else
        *out = cache;
    return status;
}

lk_status lk_cache_new(struct lk_cache **out, const struct lk_recipe *recipe,
                       const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_cache_alloc(out, recipe, shape, ledger, err);
    if (status) return status;
    status = lk_latent_levels_open(*out, err);
    if (!status) return LK_OK;
    lk_cache_free(*out);
    *out = NULL;
    return status;
}

void lk_cache_drop_scratch(struct lk_cache *cache) {
    for (int side = 0; side < 2; side++) {
        lk_release(cache->ledger, LK_FOR_SCRATCH, cache->rows[side], scratch_bytes(cache, side));
        cache->rows[side] = NULL;
    }
    lk_projecting_free(cache);
    for (int k = 0; k < lk_cache_n_kv(cache); k++)
        lk_cache_kv(cache, k)->rows = lk_cache_kv(cache, k)->out = NULL;
}

void lk_cache_clear(struct lk_cache *cache) {
    cache->pool.keep_free = true; /* lk_cache_trim frees all slabs at the end */
    for (int layer = 0; cache->evict && layer < cache->shape.n_layer; layer++)
        lk_evict_free(&cache->evict[layer], cache->ledger);
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            for (int64_t b = 0; b < level->n_block; b++)
                lk_pool_free(&cache->pool, level->block[b]);
            lk_release(cache->ledger, LK_FOR_CACHE, level->block,
                       level->cap * sizeof *level->block);
            level->block = NULL;
            level->n_block = level->cap = 0;
            kv->count[i] = (struct lk_level_count){0};
        }
        kv->first = kv->n_tok = 0;
        for (int i = 0; i < 2; i++) lk_equalizer_clear(&kv->equalizer[i]);
        kv->has_all_rows = lk_held_collects(kv, kv->count);
    }
    lk_cache_trim(cache);
}

void lk_cache_free(struct lk_cache *cache) {
    if (!cache) return;
    const struct lk_cache_shape *shape = &cache->shape;
    free_device_room(cache);
    if (cache->kv) {
        lk_cache_clear(cache);
        for (int k = 0; k < lk_cache_n_kv(cache); k++) {
            struct lk_kv *kv = lk_cache_kv(cache, k);
            for (int i = 0; i < 2; i++) lk_equalizer_free(&kv->equalizer[i], cache->ledger);
        }
        lk_latent_levels_close(cache);
        for (int k = 0; k < lk_cache_n_kv(cache); k++)
            for (int i = 0; i < LK_MAX_KV_LEVEL; i++)
                lk_level_layout_free(&lk_cache_kv(cache, k)->level[i], cache->ledger);
        lk_release(cache->ledger, LK_FOR_OTHER, cache->kv, shape->n_layer * sizeof *cache->kv);
    }
    lk_release(cache->ledger, LK_FOR_OTHER, cache->evict, shape->n_layer * sizeof *cache->evict);
    for (int side = 0; side < 2; side++)
        lk_release(cache->ledger, LK_FOR_SCRATCH, cache->rows[side], scratch_bytes(cache, side));
    lk_pool_destroy(&cache->pool);
    lk_release(cache->ledger, LK_FOR_OTHER, cache, sizeof *cache);
}

/* ---- rows in ---- */

/* A list that runs in the cache's scratch for one side. Another thread may use the other one. */
static struct lk_moves *own_list(struct lk_cache *cache, struct lk_short_list *list,
                                 enum lk_side side) {
    return lk_moves_start(list, cache, cache->rows[side]);
}

/* Append rows where the list's moves read them. */
static lk_status append_rows(struct lk_moves *list, int layer, enum lk_side side, const float *x,
                             int64_t n, lk_err *err) {
    struct lk_cache *cache = list->cache;
    struct lk_kv *kv = &cache->kv[layer][side];
    int64_t pos = kv->n_tok, n_sink = (int64_t)lk_level_sinks(kv->rule, kv->n_level) - pos;
    if (n_sink < 0) n_sink = 0;
    if (n_sink > n) n_sink = n;
    if (kv->evict && side == LK_K && !kv->is_elsewhere) {
        struct lk_evict *evict = &cache->evict[layer];
        if (!lk_evict_reserve(evict, cache->ledger, evict->n + n))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        lk_evict_append(evict, n, pos);
    }
    kv->n_tok += n;
    const float *after_sinks = kv->is_elsewhere ? NULL : x + (size_t)n_sink * lk_kv_width(kv);
    if (lk_moves_append(list, kv, 0, x, n_sink, pos) &&
        lk_moves_append(list, kv, kv->n_level - 1, after_sinks, n - n_sink, pos + n_sink))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
}

lk_status lk_cache_append(struct lk_cache *cache, int layer, enum lk_side side, const float *x,
                          int64_t n, lk_err *err) {
    const struct lk_kv *kv = &cache->kv[layer][side];
    if (cache->shape.device && !kv->is_elsewhere) {
        x = lk_cache_upload_rows(cache, side, x, n, lk_kv_width(kv));
        if (!x) return lk_fail(err, LK_E_NOMEM, "no device memory for %lld new rows", (long long)n);
    }
    struct lk_short_list room;
    struct lk_moves *list = own_list(cache, &room, side);
    lk_status status = append_rows(list, layer, side, x, n, err);
    lk_moves_run(list);
    return status;
}

lk_status lk_cache_append_there(struct lk_cache *cache, int layer, const uint64_t x[2], int64_t n,
                                lk_err *err) {
    struct lk_short_list room;
    struct lk_moves *list = own_list(cache, &room, LK_K);
    lk_status status = LK_OK;
    for (int side = 0; side < 2 && !status; side++)
        status =
            append_rows(list, layer, (enum lk_side)side, (const float *)(uintptr_t)x[side], n, err);
    lk_moves_run(list);
    return status;
}

void lk_cache_observe(struct lk_cache *cache, int layer, const float *q, int n_tok, int n_head) {
    lk_equalizer_observe(&cache->kv[layer][LK_K], q, n_tok, n_head);
}

bool lk_cache_observes(const struct lk_cache *cache, int layer) {
    const struct lk_equalizer *equalizer = cache->kv[layer][LK_K].equalizer;
    for (int i = 0; i < 2; i++)
        if (equalizer[i].query_power && !equalizer[i].calibrated) return true;
    return false;
}

/* Move rows that are old enough into older levels, in a layer that does not evict. */
static lk_status encode_rows(struct lk_moves *list, int layer, struct lk_kv *kv, lk_err *err) {
    int from, batch;
    while (lk_level_next_move(kv->rule, kv->count, kv->n_level, kv->n_tok, &from, &batch)) {
        int to = from - 1;
        lk_moves_calibrate(list, kv, from);
        for (int left = batch; left > 0;) {
            int n = lk_move_rows(kv, from, left < LK_MAX_MOVE ? left : LK_MAX_MOVE);
            int64_t n_fit = lk_level_room(&kv->rule[to], &kv->count[to], kv->n_tok, n);
            if (n_fit && !lk_moves_age(list, kv, from, n_fit))
                return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
            if (n > n_fit) lk_moves_drop(list, kv, from, n - n_fit);
            kv->first += n - n_fit;
            left -= n;
        }
    }
    return LK_OK;
}

lk_status lk_cache_encode(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err) {
    struct lk_kv *kv = &cache->kv[layer][side];
    bool limited = false;
    for (int i = 0; i < kv->n_level; i++)
        limited |= kv->rule[i].limit.policy.kind != LK_POLICY_NONE;
    if (limited) return LK_OK;
    struct lk_short_list room;
    struct lk_moves *list = own_list(cache, &room, side);
    lk_status status = encode_rows(list, layer, kv, err);
    lk_moves_run(list);
    return status;
}

lk_status lk_cache_age_by(struct lk_moves *list, int layer, enum lk_side side, lk_err *err) {
    struct lk_kv *kv = &list->cache->kv[layer][side];
    if (kv->evict) return lk_evict_age(list, layer, err);
    lk_status status = encode_rows(list, layer, kv, err);
    for (int i = 0; !status && kv->n_swa > 0 && i < kv->n_level; i++) {
        int64_t n =
            lk_level_droppable(&kv->rule[i], &kv->count[i], kv->first, kv->n_tok, kv->n_swa);
        if (n) lk_moves_drop(list, kv, i, n);
        kv->first += n;
        if (kv->count[i].rows) break;
    }
    return status;
}

lk_status lk_cache_age(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err) {
    struct lk_short_list room;
    bool both = cache->kv[layer][side].evict; /* K and V age together, in the larger scratch */
    enum lk_side widest = cache->d_part[LK_K] > cache->d_part[LK_V] ? LK_K : LK_V;
    struct lk_moves *list = own_list(cache, &room, both ? widest : side);
    lk_status status = lk_cache_age_by(list, layer, side, err);
    lk_moves_run(list);
    return status;
}

/* ---- rows out ---- */

bool lk_cache_can_truncate(const struct lk_cache *cache, int64_t n_tok) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->n_tok - n_tok > kv->count[kv->n_level - 1].rows) return false;
        /* After an eviction, rows may be missing that an earlier query would see. */
        if (kv->n_swa == 0 && kv->first > 0) return false;
        if (kv->evict && kv->evict->adds_scores && n_tok < kv->n_tok) return false;
        if (kv->n_swa > 0 && kv->first > 0 && n_tok - kv->n_swa + 1 < kv->first) return false;
    }
    return true;
}

static void drop_layer(struct lk_cache *cache, int layer, int64_t n) {
    for (int k = 2 * layer; k < 2 * layer + 2; k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        int newest = kv->n_level - 1;
        struct lk_level *level = &kv->level[newest];
        struct lk_level_count *count = &kv->count[newest];
        count->rows -= n;
        if (kv->evict && kv->side == LK_K && !kv->is_elsewhere) cache->evict[k / 2].n -= n;
        kv->n_tok -= n;
        int64_t n_block = lk_level_blocks(&kv->rule[newest], count);
        while (level->n_block > n_block) lk_pool_free(&cache->pool, level->block[--level->n_block]);
        if (count->rows == 0) count->skip = 0;
    }
}

/* Remove the newest n rows, which lie in the newest level of every layer. */
static void cache_drop_newest(struct lk_cache *cache, int64_t n) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++) drop_layer(cache, layer, n);
}

bool lk_cache_truncate(struct lk_cache *cache, int64_t n_tok) {
    if (!lk_cache_can_truncate(cache, n_tok)) return false;
    cache_drop_newest(cache, cache->kv[0][LK_K].n_tok - n_tok);
    /* The next rows may go to a shared block, whose copy was not reserved. */
    if (cache->pool.n_shared) lk_cache_trim(cache);
    return true;
}

/* ---- copies of a cache that share its blocks ---- */

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
    to->has_all_rows = from->has_all_rows;
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

/* ---- rows of drafts: how many fit into a pass, and dropping them ---- */

const char *lk_cache_refuses_drafts(const struct lk_cache *cache) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->evict && kv->evict->adds_scores)
            return "the recipe evicts by attention scores, and what drafts add to these cannot be "
                   "taken back";
        if (kv->rule[kv->n_level - 1].batch == 1)
            return "the recipe encodes or evicts a row after every token, so drafts could not be "
                   "dropped again";
    }
    return NULL;
}

/* Do rows move or leave when n more have arrived in the newest level? */
static bool moves_rows(const struct lk_kv *kv, int64_t n) {
    struct lk_level_count count[LK_MAX_KV_LEVEL];
    int64_t n_tok = kv->n_tok + n;
    int from, batch;
    memcpy(count, kv->count, sizeof count);
    count[kv->n_level - 1].rows += n;
    if (lk_level_next_move(kv->rule, count, kv->n_level, n_tok, &from, &batch)) return true;
    for (int i = 0; kv->n_swa > 0 && i < kv->n_level; i++) {
        if (lk_level_droppable(&kv->rule[i], &count[i], kv->first, n_tok, kv->n_swa)) return true;
        if (count[i].rows) break;
    }
    return false;
}

/* The maximum number of rows, at most n, that can arrive without moving others. More rows never
 * move fewer. */
static int64_t rows_that_fit(const struct lk_kv *kv, int64_t n) {
    int64_t fit = 0, moving = n + 1;
    if (kv->n_tok < (int64_t)lk_level_sinks(kv->rule, kv->n_level)) return 0;
    if (n > 0 && !moves_rows(kv, n)) return n;
    while (moving - fit > 1) {
        int64_t middle = fit + (moving - fit) / 2;
        if (moves_rows(kv, middle))
            moving = middle;
        else
            fit = middle;
    }
    return fit;
}

int64_t lk_cache_draftable(const struct lk_cache *cache, int64_t n) {
    if (n > LK_DRAFT_TOKENS) n = LK_DRAFT_TOKENS;
    for (int k = 0; k < lk_cache_n_kv(cache) && n > 0; k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->evict && kv->evict->adds_scores) return 0;
        n = rows_that_fit(kv, n);
    }
    return n;
}

lk_status lk_cache_prepare_drafts(struct lk_cache *cache, lk_err *err) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int i = 0; i < 2; i++)
            if (!lk_equalizer_record(&cache->kv[layer][LK_K].equalizer[i], LK_DRAFT_TOKENS,
                                     cache->ledger))
                return lk_fail(err, LK_E_NOMEM, "no memory for drafts");
    return LK_OK;
}

void lk_cache_drop_drafts(struct lk_cache *cache, int64_t n_keep, int64_t n_drop) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int i = 0; i < 2; i++)
            lk_equalizer_go_back(&cache->kv[layer][LK_K].equalizer[i], (int)n_keep - 1);
    cache_drop_newest(cache, n_drop);
    if (cache->pool.keep_free) cache->reserved += n_drop;
}
