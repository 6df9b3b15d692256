/* Serialization of a cache: writing and restoring. */
#include "cache/cache_save.h"

#include "cache/cache_check.h"
#include "cache/equalizer.h"
#include "cache/latent_levels.h"

#include <string.h>

bool lk_cache_write_counts(const struct lk_cache *cache, const struct lk_writer *writer) {
    bool ok = true;
    for (int k = 0; ok && k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        struct lk_saved_kv saved = {.first = kv->first,
                                    .n_tok = kv->n_tok,
                                    .n_level = kv->n_level,
                                    .calibrated = kv->equalizer[0].calibrated |
                                                  kv->equalizer[1].calibrated << 1};
        ok = writer->put(writer->user, &saved, sizeof saved);
        for (int i = 0; ok && i < kv->n_level; i++) {
            struct lk_saved_level level = lk_saved_level_of(kv, i);
            ok = writer->put(writer->user, &level, sizeof level);
        }
    }
    return ok;
}

/* ---- writing rows ---- */

bool lk_saving_put(struct lk_saving *saving, int holder, const void *data, size_t n) {
    const struct lk_writer *writer = saving->writer;
    struct lk_save_link *link = saving->link;
    if (n == 0) return saving->ok; /* and `data` may be NULL */
    if (saving->n_byte)
        *saving->n_byte += !link || link->own == holder ? n : 0;
    else if (link) /* the holder does not know whether process 0 can still write */
        saving->ok = link->put(link, saving->ok ? writer : NULL, holder, data, n) && saving->ok;
    else
        saving->ok = saving->ok && writer->put(writer->user, data, n);
    return saving->ok;
}

static void write_statistics(struct lk_saving *saving, const struct lk_kv *kv, int holder) {
    for (int i = 0; i < 2; i++) {
        const struct lk_equalizer *e = &kv->equalizer[i];
        size_t n = lk_equalizer_array_bytes(e);
        if (e->sigma) lk_saving_put(saving, holder, e->sigma, n);
        if (e->query_power) lk_saving_put(saving, holder, e->query_power, n);
    }
}

/* Positions and scores of a layer that evicts. */
static void write_evict(struct lk_saving *saving, const struct lk_kv *k, int holder,
                        const struct lk_evict *evict) {
    size_t n = (size_t)(k->n_tok - k->first) * evict->n_head;
    lk_saving_put(saving, holder, evict->pos, n * sizeof *evict->pos);
    if (evict->needs_scores) lk_saving_put(saving, holder, evict->score, n * sizeof *evict->score);
}

static void put_block(struct lk_saving *saving, const struct lk_kv *kv, int i, int64_t b) {
    /* Only counting bytes does not read the block. */
    const char *block = saving->n_byte ? lk_kv_block(kv, i, b) : lk_kv_fetch(kv, i, b);
    lk_saving_put(saving, lk_held_holder(kv, i, b), block, kv->level[i].block_bytes);
}

bool lk_cache_write_rows(const struct lk_cache *cache, struct lk_saving *saving) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        write_statistics(saving, kv, kv->holder);
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; b < kv->level[i].n_block; b++) put_block(saving, kv, i, b);
        if (kv->side == LK_V && kv->evict)
            write_evict(saving, &cache->kv[k / 2][LK_K], kv->holder, &cache->evict[k / 2]);
    }
    return saving->ok;
}

/* ---- writing a part ---- */

enum { INDEX_CHUNK = 2048 }; /* blocks whose indices are merged at a time */

/* A level of a part, and the same level of the later state. */
struct level_pair {
    const struct lk_cache *cache, *later;
    int kv, level; /* lk_cache_kv */
};

/* The index in the later state of block b, at or after *next, which moves after it; -1 if it is not
 * there. */
static int32_t find_block(const struct level_pair *pair, int64_t b, int64_t *next) {
    lk_block block = lk_cache_kv(pair->cache, pair->kv)->level[pair->level].block[b];
    const struct lk_level *later = &lk_cache_kv(pair->later, pair->kv)->level[pair->level];
    if (!lk_pool_is_same(&pair->cache->pool, &pair->later->pool, block)) return -1;
    for (int64_t i = *next; i < later->n_block; i++)
        if (later->block[i] == block) {
            *next = i + 1;
            return (int32_t)i;
        }
    return -1;
}

/* The blocks of the level that the later state does not hold, and the indices of the others. Each
 * process knows the indices of the blocks that it holds. */
static void write_level_part(const struct level_pair *pair, struct lk_saving *saving) {
    const struct lk_kv *kv = lk_cache_kv(pair->cache, pair->kv);
    struct lk_save_link *link = saving->link;
    int i = pair->level, n_holder = lk_kv_is_divided(kv) ? kv->share.n : 1;
    const struct lk_level *level = &kv->level[i];
    int64_t next = 0, n;
    for (int64_t b0 = 0; b0 < level->n_block; b0 += n) {
        int32_t index[INDEX_CHUNK];
        n = level->n_block - b0 < INDEX_CHUNK ? level->n_block - b0 : INDEX_CHUNK;
        for (int64_t b = b0; b < b0 + n; b++) {
            bool here = !link || link->own == lk_held_holder(kv, i, b);
            index[b - b0] = here ? find_block(pair, b, &next) : -1;
        }
        if (link && !saving->n_byte)
            saving->ok = link->merge(link, kv->holder, n_holder, index, (size_t)n) && saving->ok;
        for (int64_t b = b0; b < b0 + n; b++) {
            lk_saving_put(saving, 0, &index[b - b0], sizeof *index);
            if (index[b - b0] < 0) put_block(saving, kv, i, b);
        }
    }
}

bool lk_cache_write_part(const struct lk_cache *cache, const struct lk_cache *later,
                         struct lk_saving *saving) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        write_statistics(saving, kv, kv->holder);
        for (int i = 0; i < kv->n_level; i++)
            write_level_part(&(struct level_pair){cache, later, k, i}, saving);
        if (kv->side == LK_V && kv->evict)
            write_evict(saving, &cache->kv[k / 2][LK_K], kv->holder, &cache->evict[k / 2]);
    }
    return saving->ok;
}

/* ---- restoring counts ---- */

/* Read the counts of K or V of a layer, which have been checked. Returns their end. */
static const char *restore_kv_counts(struct lk_kv *kv, const char *counts) {
    struct lk_saved_kv saved;
    struct lk_saved_level level[LK_MAX_KV_LEVEL];
    memcpy(&saved, counts, sizeof saved);
    memcpy(level, counts + sizeof saved, (size_t)kv->n_level * sizeof *level);
    kv->first = saved.first;
    kv->n_tok = saved.n_tok;
    for (int i = 0; i < 2; i++) kv->equalizer[i].calibrated = saved.calibrated >> i & 1;
    for (int i = 0; i < kv->n_level; i++)
        kv->count[i] = (struct lk_level_count){level[i].rows, level[i].skip};
    kv->has_all_rows = lk_held_collects(kv, kv->count);
    return counts + sizeof saved + (size_t)kv->n_level * sizeof *level;
}

lk_status lk_cache_restore_counts(struct lk_cache *cache, const void *counts, lk_err *err) {
    const char *at = counts;
    lk_cache_clear(cache);
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_kv *k = &cache->kv[layer][LK_K];
        for (int side = 0; side < 2; side++) at = restore_kv_counts(&cache->kv[layer][side], at);
        lk_status status = lk_cache_alloc_blocks(cache, layer, err);
        if (!status && k->evict && !k->is_elsewhere &&
            !lk_evict_reserve(&cache->evict[layer], cache->ledger, k->n_tok - k->first))
            status = lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        if (status) {
            lk_cache_clear(cache);
            return status;
        }
    }
    return LK_OK;
}

/* ---- restoring rows ---- */

struct lk_restoring lk_restoring_start(const void *data, uint64_t n, struct lk_save_link *link,
                                       void *room) {
    struct lk_restoring from = {.data = data, .n_left = n, .link = link, .room = room};
    if (!link) {
        from.piece = data;
        from.n_piece = n;
        from.n_left = 0;
    }
    return from;
}

/* Broadcast the next piece. */
static void next_piece(struct lk_restoring *from) {
    uint64_t n = from->n_left < LK_RESTORE_ROOM ? from->n_left : LK_RESTORE_ROOM;
    struct lk_save_link *link = from->link;
    bool sends = link && link->own == 0;
    void *data = sends ? (void *)from->data : from->room; /* a broadcast reads it */
    from->lost = n == 0 || !link || !link->broadcast(link, 0, data, n);
    from->piece = data;
    from->n_piece = n;
    from->n_left -= n;
    if (sends) from->data = (const char *)data + n;
}

void lk_restoring_get(struct lk_restoring *from, void *to, uint64_t n) {
    for (char *at = to; n > 0 && !from->lost;) {
        if (from->n_piece == 0) next_piece(from);
        uint64_t now = n < from->n_piece ? n : from->n_piece;
        if (from->lost) return;
        if (at) {
            memcpy(at, from->piece, now);
            at += now;
        }
        from->piece += now;
        from->n_piece -= now;
        n -= now;
    }
}

static void restore_statistics(struct lk_kv *kv, struct lk_restoring *from) {
    for (int i = 0; i < 2; i++) {
        struct lk_equalizer *e = &kv->equalizer[i];
        if (e->sigma) lk_restoring_get(from, e->sigma, lk_equalizer_array_bytes(e));
        if (e->query_power) lk_restoring_get(from, e->query_power, lk_equalizer_array_bytes(e));
    }
    lk_latent_levels_restore(kv);
}

/* Positions and scores of the n rows that a layer holds. held: this process holds the layer, and
 * has reserved room. */
static void restore_evict(struct lk_evict *evict, bool held, int64_t n, struct lk_restoring *from) {
    size_t n_value = (size_t)n * (size_t)evict->n_head;
    evict->n = held ? n : 0;
    lk_restoring_get(from, held ? evict->pos : NULL, n_value * sizeof *evict->pos);
    if (evict->needs_scores)
        lk_restoring_get(from, held ? evict->score : NULL, n_value * sizeof *evict->score);
}

/* The next bytes to a block; 0: leave them out. */
static void get_block(struct lk_restoring *from, const struct lk_kv *kv, lk_block block,
                      size_t size) {
    struct lk_device *device = kv->arena->device;
    char *at = lk_block_address(kv->arena, block);
    lk_restoring_get(from, device && at ? kv->copy : at, size);
    if (device && at)
        lk_arena_note(kv->arena,
                      device->call->upload(device, (uint64_t)(uintptr_t)at, kv->copy, size, NULL));
}

bool lk_cache_restore_rows(struct lk_cache *cache, struct lk_restoring *from) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        restore_statistics(kv, from);
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; b < kv->level[i].n_block; b++)
                get_block(from, kv, kv->level[i].block[b], kv->level[i].block_bytes);
        if (kv->side == LK_V && kv->evict)
            restore_evict(&cache->evict[k / 2], !kv->is_elsewhere, kv->n_tok - kv->first, from);
    }
    lk_cache_trim(cache);
    return !from->lost;
}

/* ---- restoring a part ---- */

/* A level whose blocks are being replaced, and what it was in the later state. */
struct level_part {
    struct lk_cache *cache;
    const struct lk_kv *kv, *later;
    int level;
    int64_t next; /* the later blocks before it are in use again, or freed */
};

/* Is block b, which is block `same` of the later state, needed in processes that do not hold it
 * there? All of them hold all rows until there are channel statistics. */
static bool is_needed_elsewhere(const struct level_part *part, int64_t b, int64_t same) {
    const struct lk_kv *kv = part->kv, *later = part->later;
    if (!lk_kv_is_divided(kv) || lk_held_by_all(later)) return false;
    return lk_held_by_all(kv) ||
           lk_held_holder(kv, part->level, b) != lk_held_holder(later, part->level, same);
}

/* Block b of the part: block `same` of the later state. 0 if it is not to be held here, or *ok
 * becomes false because it has no memory. */
static lk_block take_later_block(struct level_part *part, int64_t b, int64_t same,
                                 struct lk_restoring *from, bool *ok) {
    struct lk_pool *pool = &part->cache->pool;
    const struct lk_level *later = &part->later->level[part->level];
    bool held = lk_held_has_block(part->kv, part->level, b);
    for (; part->next < same; part->next++) lk_pool_free(pool, later->block[part->next]);
    lk_block block = later->block[part->next++];
    if (is_needed_elsewhere(part, b, same)) {
        int holder = lk_held_holder(part->later, part->level, same);
        if (held && !block) block = lk_pool_alloc(pool, later->block_bytes);
        if (held && !block) *ok = false;
        void *data = block ? lk_block_address(&pool->arena, block) : from->spare;
        from->lost =
            !from->link->broadcast(from->link, holder, data, later->block_bytes) || from->lost;
    }
    if (held || !block) return block;
    lk_pool_free(pool, block);
    return 0;
}

/* Replace the blocks of level i of K or V, which are those of the later state, by those of a part.
 * Without memory, the rest of the part is still read, as the other processes do. */
static bool restore_level_part(struct lk_cache *cache, struct lk_kv *kv, int i,
                               const struct lk_kv *later, struct lk_restoring *from) {
    struct level_part part = {cache, kv, later, i, 0};
    struct lk_level *level = &kv->level[i];
    const struct lk_level *old = &later->level[i];
    int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->count[i]);
    level->block = NULL;
    level->n_block = level->cap = 0;
    bool has_table = lk_cache_grow_table(cache, level, n_block), ok = has_table;
    for (int64_t b = 0; b < n_block; b++) {
        int32_t same = -1;
        lk_block block = 0;
        lk_restoring_get(from, &same, sizeof same);
        if (same >= 0) {
            block = take_later_block(&part, b, same, from, &ok);
        } else {
            bool held = lk_held_has_block(kv, i, b);
            if (held && ok) block = lk_pool_alloc(&cache->pool, level->block_bytes);
            ok = ok && (block || !held);
            get_block(from, kv, block, level->block_bytes);
        }
        if (has_table)
            level->block[level->n_block++] = block;
        else
            lk_pool_free(&cache->pool, block);
    }
    for (; part.next < old->n_block; part.next++) lk_pool_free(&cache->pool, old->block[part.next]);
    lk_release(cache->ledger, LK_FOR_CACHE, old->block, (size_t)old->cap * sizeof *old->block);
    return ok;
}

bool lk_cache_restore_part(struct lk_cache *cache, const void *counts, struct lk_restoring *from) {
    const char *at = counts;
    bool ok = true;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        const struct lk_kv later = *kv;
        at = restore_kv_counts(kv, at);
        restore_statistics(kv, from);
        for (int i = 0; i < kv->n_level; i++)
            ok = restore_level_part(cache, kv, i, &later, from) && ok;
        if (kv->side != LK_V || !kv->evict) continue;
        bool held = !kv->is_elsewhere &&
                    lk_evict_reserve(&cache->evict[k / 2], cache->ledger, kv->n_tok - kv->first);
        ok = ok && (held || kv->is_elsewhere);
        restore_evict(&cache->evict[k / 2], held, kv->n_tok - kv->first, from);
    }
    if (ok)
        lk_cache_trim(cache);
    else
        lk_cache_clear(cache);
    return ok;
}
