#include "cache/cache.h"

#include "cache/cache_copy.h"
#include "cache/calibrate.h"
#include "cache/k_up.h"
#include "cache/move.h"
#include "cache/project.h"

#include <string.h>

static size_t channels(const struct lk_cache_shape *shape) {
    return (size_t)shape->n_head_kv * shape->d_head;
}

/* Scratch of a side: rows that are on their way, and their latents. */
static size_t rows_bytes(const struct lk_cache *cache) {
    return 2 * LK_MAX_MOVE * channels(&cache->shape) * sizeof(float);
}

/* Of latents an older level has at most what the newer one has; ranks may come from the sidecar, so that
 * this is not known before. */
static lk_status check_rank(const struct lk_kv *kv, int older, int layer, lk_err *err) {
    const struct lk_level *a = &kv->level[older], *b = &kv->level[older + 1];
    bool sinks = older == 0 && lk_level_sinks(kv->rule, kv->n_level) > 0;
    if (sinks || !b->basis || (a->basis == b->basis && a->d_part <= b->d_part)) return LK_OK;
    return lk_fail(
        err, LK_E_ARG,
        "layer %d keeps %s at a rank of %d, but these rows come from a newer level of rank %d",
        layer, kv->side == LK_K ? "K" : "V", a->d_part, b->d_part);
}

static const struct lk_evict *init_slots(struct lk_cache *cache, int layer,
                                         const struct lk_policy *policy) {
    struct lk_evict *evict = &cache->evict[layer];
    evict->policy = *policy;
    evict->policy.salt = (uint32_t)layer;
    evict->n_head = cache->shape.n_head_kv;
    evict->needs_scores = lk_policy_needs(policy) != LK_SCORES_NONE;
    return evict;
}

/* A policy replaces rows in place, and reads them as heads' rows. */
static lk_status check_slots(const struct lk_kv *kv, lk_err *err) {
    for (int i = 0; kv->evict && i < kv->n_level; i++)
        if (kv->level[i].basis)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "latents beside rows that a policy keeps or a state absorbs are not "
                           "possible; use other codecs in this recipe");
    return LK_OK;
}

static lk_status init_stream(struct lk_cache *cache, const struct lk_recipe *recipe, int layer,
                             enum lk_side side, lk_err *err) {
    const struct lk_cache_shape *shape = &cache->shape;
    struct lk_kv *kv = &cache->kv[layer][side];
    bool swa = shape->is_swa && shape->is_swa[layer];
    kv->side = side;
    kv->n_swa = swa ? shape->n_swa : 0;
    kv->n_level = lk_level_rules(recipe, layer, shape->n_layer, side, swa, shape->n_ctx, kv->rule);
    kv->rows = cache->rows[side];
    kv->latents = cache->rows[side] + LK_MAX_MOVE * channels(shape);
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level_rule *rule = &kv->rule[i];
        bool limited = rule->limit.policy.keep != LK_POLICY_NONE &&
                       (recipe->absorbs || !lk_limit_none(&rule->limit));
        if (limited && !kv->n_swa) kv->evict = init_slots(cache, layer, &rule->limit.policy);
        lk_status status = lk_level_shape(&kv->level[i], rule, shape, layer, side, err);
        if (status == LK_OK && i > 0) status = check_rank(kv, i - 1, layer, err);
        if (status == LK_OK && rule->codec.sigma)
            status = lk_equalizer_add(kv, i, cache->ledger, err);
        if (status == LK_OK) status = lk_k_up_new(kv, i, shape, cache->ledger, err);
        if (status != LK_OK) return status;
    }
    return check_slots(kv, err);
}

/* lk_cache_new, but that latents of K cannot be brought back. */
static lk_status make(struct lk_cache **out, const struct lk_recipe *recipe,
                      const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err) {
    struct lk_cache *cache = lk_alloc(ledger, LK_FOR_OTHER, sizeof *cache);
    if (!cache) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    cache->ledger = ledger;
    cache->shape = *shape;
    cache->kernels = lk_kernels_choose(NULL); /* all tables write the same bits */
    lk_pool_init(&cache->pool, ledger);
    cache->kv = lk_alloc(ledger, LK_FOR_OTHER, shape->n_layer * sizeof *cache->kv);
    cache->evict = lk_alloc(ledger, LK_FOR_OTHER, shape->n_layer * sizeof *cache->evict);
    for (int side = 0; side < 2; side++)
        cache->rows[side] = lk_alloc(ledger, LK_FOR_SCRATCH, rows_bytes(cache));
    lk_status status = LK_OK;
    if (!cache->kv || !cache->evict || !cache->rows[LK_K] || !cache->rows[LK_V])
        status = lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    for (int layer = 0; status == LK_OK && layer < shape->n_layer; layer++)
        for (int side = 0; status == LK_OK && side < 2; side++)
            status = init_stream(cache, recipe, layer, side, err);
    if (status != LK_OK)
        lk_cache_free(cache);
    else
        *out = cache;
    return status;
}

lk_status lk_cache_new(struct lk_cache **out, const struct lk_recipe *recipe,
                       const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = make(out, recipe, shape, ledger, err);
    if (status != LK_OK) return status;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        struct lk_kv *kv = &(*out)->kv[layer][LK_K];
        for (int i = 0; i < kv->n_level; i++) /* others when their channels are known */
            for (int part = 0; !kv->rule[i].codec.sigma && part < kv->level[i].n_part; part++)
                lk_k_up_prepare(kv, i, part, shape->d_head);
    }
    return LK_OK;
}

void lk_cache_clear(struct lk_cache *cache) {
    cache->pool.hold = true; /* slabs go together, at the end */
    for (int layer = 0; cache->evict && layer < cache->shape.n_layer; layer++)
        lk_evict_free(&cache->evict[layer], cache->ledger);
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            struct lk_kv *kv = &cache->kv[layer][side];
            for (int i = 0; i < kv->n_level; i++) {
                struct lk_level *level = &kv->level[i];
                for (int64_t b = 0; b < level->n_block; b++)
                    lk_pool_free(&cache->pool, level->block_bytes, level->block[b]);
                lk_release(cache->ledger, LK_FOR_CACHE, level->block,
                           level->cap * sizeof *level->block);
                level->block = NULL;
                level->n_block = level->cap = 0;
                kv->fill[i] = (struct lk_fill){0};
            }
            kv->first = kv->n_tok = 0;
            for (int i = 0; i < 2; i++) lk_equalizer_clear(&kv->equalizer[i]);
        }
    lk_cache_trim(cache);
}

void lk_cache_free(struct lk_cache *cache) {
    if (!cache) return;
    if (cache->kv) {
        lk_cache_clear(cache);
        for (int layer = 0; layer < cache->shape.n_layer; layer++)
            for (int side = 0; side < 2; side++) {
                struct lk_kv *kv = &cache->kv[layer][side];
                for (int i = 0; i < 2; i++) lk_equalizer_free(&kv->equalizer[i], cache->ledger);
                for (int i = 0; i < kv->n_level; i++)
                    lk_k_up_free(&kv->level[i], cache->shape.n_head_kv, cache->ledger);
            }
        lk_release(cache->ledger, LK_FOR_OTHER, cache->kv,
                   cache->shape.n_layer * sizeof *cache->kv);
    }
    lk_release(cache->ledger, LK_FOR_OTHER, cache->evict,
               cache->shape.n_layer * sizeof *cache->evict);
    for (int side = 0; side < 2; side++)
        lk_release(cache->ledger, LK_FOR_SCRATCH, cache->rows[side], rows_bytes(cache));
    lk_pool_destroy(&cache->pool);
    lk_release(cache->ledger, LK_FOR_OTHER, cache, sizeof *cache);
}

/* ---- memory for what is to come ---- */

bool lk_cache_has_room(struct lk_cache *cache, struct lk_level *level, int64_t n_block) {
    if (n_block <= level->cap) return true;
    int64_t cap = n_block + n_block / 8 + 4;
    if (!lk_grow(cache->ledger, LK_FOR_CACHE, (void **)&level->block,
                 level->cap * sizeof *level->block, cap * sizeof *level->block))
        return false;
    level->cap = cap;
    return true;
}

static int want_for_stream(struct lk_cache *cache, struct lk_kv *kv, struct lk_evict *evict,
                           int64_t n_new, int64_t portion) {
    struct lk_fill fill[LK_MAX_KV_LEVEL];
    int64_t most[LK_MAX_KV_LEVEL] = {0}, first = kv->first, n_tok = kv->n_tok, most_rows = 0;
    memcpy(fill, kv->fill, sizeof fill);
    for (int64_t done = 0; done < n_new;) {
        int64_t n = n_new - done < portion ? n_new - done : portion;
        if (most_rows < n_tok + done + n - first) most_rows = n_tok + done + n - first;
        lk_level_advance(kv->rule, fill, kv->n_level, n_tok + done, n, kv->n_swa, &first, most);
        done += n;
    }
    if (kv->evict && !lk_evict_reserve(evict, cache->ledger, most_rows)) return 0;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_level *level = &kv->level[i];
        if (!lk_cache_has_room(cache, level, most[i])) return 0;
        int64_t more = most[i] - level->n_block;
        if (more > 0 && !lk_pool_reserve(&cache->pool, level->block_bytes, more)) return 0;
    }
    return lk_cache_reserve_shared(cache, kv, fill, n_new, first);
}

lk_status lk_cache_prepare(struct lk_cache *cache, int layer0, int layer1, int64_t n_new,
                           int64_t portion, lk_err *err) {
    lk_pool_reserve_none(&cache->pool);
    cache->reserved = 0;
    int ok = 1;
    for (int layer = layer0; ok && layer < layer1; layer++)
        for (int side = 0; ok && side < 2; side++)
            ok = want_for_stream(cache, &cache->kv[layer][side], &cache->evict[layer], n_new,
                                 portion);
    if (ok && lk_pool_fill(&cache->pool)) return LK_OK;
    lk_pool_reserve_none(&cache->pool);
    lk_pool_trim(&cache->pool);
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for %lld more tokens of cache; use a smaller recipe or context",
                   (long long)n_new);
}

lk_status lk_cache_reserve(struct lk_cache *cache, int64_t n_new, lk_err *err) {
    lk_status status = lk_cache_prepare(cache, 0, cache->shape.n_layer, n_new, 1, err);
    if (status != LK_OK) return status;
    cache->reserved = n_new;
    cache->pool.hold = true;
    return LK_OK;
}

void lk_cache_trim(struct lk_cache *cache) {
    cache->reserved = 0;
    lk_pool_reserve_none(&cache->pool);
    lk_pool_trim(&cache->pool);
}

/* ---- rows in, rows out ---- */

const void *lk_cache_locate(const struct lk_kv *kv, int level, int64_t at, int *row, int64_t *n) {
    int64_t slot = kv->fill[level].skip + at;
    int block_rows = kv->rule[level].block_rows;
    *row = (int)(slot % block_rows);
    int64_t in_block = block_rows - *row, in_level = kv->fill[level].rows - at;
    *n = in_block < in_level ? in_block : in_level;
    return kv->level[level].block[slot / block_rows];
}

int64_t lk_cache_position(const struct lk_kv *kv, int level, int64_t at, int head) {
    if (kv->evict) {
        for (int i = 0; i < level; i++) at += kv->fill[i].rows;
        return kv->evict->pos[at * kv->evict->n_head + head];
    }
    if (level == 0 && lk_level_sinks(kv->rule, kv->n_level)) return at;
    int64_t newer = 0;
    for (int i = level; i < kv->n_level; i++) newer += kv->fill[i].rows;
    return kv->n_tok - newer + at;
}

/* Encode one part's rows x, a token's channels apart, as rows [row, row + n) of a level's block. */
static void put_part(const struct lk_cache *cache, const struct lk_kv *kv, int i, void *block,
                     int row, int64_t n, int part, const float *x) {
    const struct lk_level_rule *rule = &kv->rule[i];
    const struct lk_level *level = &kv->level[i];
    cache->kernels->encode(&rule->codec, kv->side, level->d_part, rule->block_rows,
                           lk_sigma_of(kv, i, part), (char *)block + part * level->head_bytes, row,
                           (int)n, x, channels(&cache->shape));
}

/* Where a part's rows or latents lie in scratch: there are never more of them than channels. */
static size_t place_of(const struct lk_cache *cache, const struct lk_level *level, int part) {
    return (size_t)part * level->n_head * cache->shape.d_head;
}

/* A block for a level's coming rows. */
static int add_block(struct lk_cache *cache, struct lk_level *level) {
    if (!lk_cache_has_room(cache, level, level->n_block + 1)) return 0;
    void *block = lk_pool_alloc(&cache->pool, level->block_bytes);
    if (block) level->block[level->n_block++] = block;
    return block != NULL;
}

void *lk_cache_writable_block(struct lk_cache *cache, struct lk_level *level, int64_t b) {
    void *block = lk_pool_make_writable(&cache->pool, level->block_bytes, level->block[b]);
    if (block) level->block[b] = block;
    return block;
}

bool lk_move_put(struct lk_cache *cache, struct lk_kv *kv, int i, const float *x, int64_t n) {
    const struct lk_level_rule *rule = &kv->rule[i];
    struct lk_level *level = &kv->level[i];
    struct lk_fill *fill = &kv->fill[i];
    size_t stride = channels(&cache->shape);
    while (n > 0) {
        int64_t slot = fill->skip + fill->rows;
        if (slot / rule->block_rows >= level->n_block && !add_block(cache, level)) return false;
        int row = (int)(slot % rule->block_rows);
        int64_t take = rule->block_rows - row < n ? rule->block_rows - row : n;
        void *block = lk_cache_writable_block(cache, level, level->n_block - 1);
        if (!block) return false;
        for (int part = 0; part < level->n_part; part++)
            put_part(cache, kv, i, block, row, take, part, x + place_of(cache, level, part));
        lk_level_put(fill, take);
        x += take * stride;
        n -= take;
    }
    return true;
}

/* The oldest n <= LK_MAX_MOVE rows of level i, as level `to` takes them. */
static const float *read_oldest(const struct lk_cache *cache, const struct lk_kv *kv, int i,
                                int64_t n, int to) {
    const struct lk_level *level = &kv->level[to];
    for (int part = 0; part < level->n_part; part++)
        lk_read_part(kv, i, 0, n, level, part, cache->shape.d_head, cache->kernels, kv->rows,
                     kv->latents + place_of(cache, level, part), channels(&cache->shape));
    return kv->latents;
}

void lk_move_read(const struct lk_cache *cache, const struct lk_kv *kv, int i, int64_t n) {
    int d = cache->shape.d_head;
    for (int h = 0; h < cache->shape.n_head_kv; h++)
        lk_read_rows(kv, i, 0, n, h, cache->kernels, kv->rows + (size_t)h * d,
                     channels(&cache->shape));
}

void lk_move_drop(struct lk_cache *cache, struct lk_kv *kv, int i, int64_t n) {
    struct lk_level *level = &kv->level[i];
    struct lk_fill *fill = &kv->fill[i];
    int64_t gone = (fill->skip + n) / kv->rule[i].block_rows;
    if (n == fill->rows) gone = level->n_block;
    lk_level_take(&kv->rule[i], fill, n);
    for (int64_t b = 0; b < gone; b++)
        lk_pool_free(&cache->pool, level->block_bytes, level->block[b]);
    level->n_block -= gone;
    memmove(level->block, level->block + gone, level->n_block * sizeof *level->block);
}

/* The first rows of all, which may be kept as latents; pos: the first one's position. */
static int put_sinks(struct lk_cache *cache, struct lk_kv *kv, const float *x, int64_t pos,
                     int64_t n) {
    const struct lk_level *level = &kv->level[0];
    size_t stride = channels(&cache->shape);
    if (!level->basis) return lk_move_put(cache, kv, 0, x, n);
    int d = cache->shape.d_head;
    for (int64_t done = 0; done < n; done++, x += stride) {
        memset(kv->latents, 0, stride * sizeof *x);
        for (int head = 0; head < cache->shape.n_head_kv; head++) {
            int part = head / level->n_head;
            float *row = memcpy(kv->rows, x + (size_t)head * d, d * sizeof *x);
            if (level->rope) lk_rope_undo(level->rope, pos + done, 1, row, stride);
            lk_project_add(level->basis, part, head % level->n_head, d, level->d_part, row, stride,
                           1, kv->latents + place_of(cache, level, part), stride);
        }
        if (!lk_move_put(cache, kv, 0, kv->latents, 1)) return 0;
    }
    return 1;
}

lk_status lk_cache_append(struct lk_cache *cache, int layer, enum lk_side side, const float *x,
                          int64_t n, lk_err *err) {
    struct lk_kv *kv = &cache->kv[layer][side];
    int64_t sinks = (int64_t)lk_level_sinks(kv->rule, kv->n_level) - kv->n_tok;
    if (sinks < 0) sinks = 0;
    if (sinks > n) sinks = n;
    if (kv->evict && side == LK_K) {
        struct lk_evict *evict = &cache->evict[layer];
        if (!lk_evict_reserve(evict, cache->ledger, evict->n + n))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        lk_evict_append(evict, n, kv->n_tok);
    }
    kv->n_tok += n;
    if (put_sinks(cache, kv, x, kv->n_tok - n, sinks) &&
        lk_move_put(cache, kv, kv->n_level - 1, x + sinks * channels(&cache->shape), n - sinks))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
}

void lk_cache_observe(struct lk_cache *cache, int layer, const float *q, int n_tok, int n_head) {
    lk_equalizer_observe(&cache->kv[layer][LK_K], q, n_tok, n_head, cache->shape.n_head_kv,
                         cache->shape.d_head);
}

void lk_move_calibrate(struct lk_cache *cache, struct lk_kv *kv, int from) {
    if (!kv->rule[from - 1].codec.sigma || lk_equalizer_of(kv, from - 1)->calibrated) return;
    for (int part = 0; part < kv->level[from - 1].n_part; part++)
        lk_calibrate(kv, from - 1, part, cache->shape.d_head, cache->kernels, kv, from, 0,
                     kv->fill[from].rows / LK_TILE, kv->rows, kv->latents, channels(&cache->shape));
    lk_equalizer_of(kv, from - 1)->calibrated = true;
}

lk_status lk_cache_age(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err) {
    struct lk_kv *kv = &cache->kv[layer][side];
    if (kv->evict) return lk_evict_age(cache, layer, err);
    int from, batch;
    while (lk_level_next_move(kv->rule, kv->fill, kv->n_level, kv->n_tok, &from, &batch)) {
        lk_move_calibrate(cache, kv, from);
        for (int left = batch; left > 0;) {
            int n = left < LK_MAX_MOVE ? left : LK_MAX_MOVE;
            int64_t stay = lk_level_room(&kv->rule[from - 1], &kv->fill[from - 1], kv->n_tok, n);
            if (stay && !lk_move_put(cache, kv, from - 1,
                                     read_oldest(cache, kv, from, stay, from - 1), stay))
                return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
            lk_move_drop(cache, kv, from, n);
            kv->first += n - stay;
            left -= n;
        }
    }
    for (int i = 0; kv->n_swa > 0 && i < kv->n_level; i++) {
        int64_t n = lk_level_droppable(&kv->rule[i], &kv->fill[i], kv->first, kv->n_tok, kv->n_swa);
        if (n) lk_move_drop(cache, kv, i, n);
        kv->first += n;
        if (kv->fill[i].rows) break;
    }
    return LK_OK;
}

/* ---- whole prompts ---- */

lk_status lk_cache_take_blocks(struct lk_cache *cache, int layer, lk_err *err) {
    lk_pool_reserve_none(&cache->pool);
    cache->reserved = 0;
    int ok = 1;
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        for (int i = 0; ok && i < kv->n_level; i++) {
            int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->fill[i]);
            ok = lk_cache_has_room(cache, &kv->level[i], n_block) &&
                 (!n_block || lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n_block));
        }
    }
    ok = ok && lk_pool_fill(&cache->pool);
    for (int side = 0; side < 2; side++)
        for (int i = 0; ok && i < cache->kv[layer][side].n_level; i++) {
            struct lk_kv *kv = &cache->kv[layer][side];
            int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->fill[i]);
            while (ok && kv->level[i].n_block < n_block) ok = add_block(cache, &kv->level[i]);
            /* Kernels multiply a tile's rows before the level's first by zero, which must not be 0 x NaN. */
            if (ok && n_block && kv->fill[i].skip)
                memset(kv->level[i].block[0], 0, kv->level[i].block_bytes);
        }
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for the cache of layer %d; use a smaller recipe or context", layer);
}

lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err) {
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        lk_level_advance(kv->rule, kv->fill, kv->n_level, 0, n_tok, kv->n_swa, &kv->first, NULL);
        kv->n_tok = n_tok;
        if (!kv->evict || side != LK_K) continue;
        if (!lk_evict_reserve(&cache->evict[layer], cache->ledger, n_tok - kv->first))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        lk_evict_append(&cache->evict[layer], n_tok - kv->first,
                        kv->first); /* until they are chosen */
    }
    return lk_cache_take_blocks(cache, layer, err);
}

/* Statistics of what a head's thread fills, from a prompt's rows, where any level needs them. */
static void calibrate_prompt(struct lk_cache *cache, struct lk_kv *kv, int head,
                             const struct lk_kv *exact) {
    int64_t sinks = lk_level_sinks(kv->rule, kv->n_level), n = exact->n_tok - sinks;
    if (n > LK_OBSERVE_ROWS) n = LK_OBSERVE_ROWS;
    bool done[2] = {false, false};
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level *level = &kv->level[i];
        bool latents = level->basis != NULL;
        if (done[latents] || !kv->rule[i].codec.sigma || !kv->fill[i].rows || head % level->n_head)
            continue;
        int d = cache->shape.d_head, part = head / level->n_head;
        float *rows = kv->rows + (size_t)head * d;
        lk_calibrate(kv, i, part, d, cache->kernels, exact, 0, sinks, n / LK_TILE, rows,
                     latents ? kv->latents + (size_t)head * d : rows, channels(&cache->shape));
        if (head == 0)
            kv->equalizer[latents].calibrated =
                true; /* one writer; nobody reads it before fill is done */
        done[latents] = true;
    }
}

void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact) {
    struct lk_kv *kv = &cache->kv[layer][side];
    int d = cache->shape.d_head;
    float *rows = kv->rows + (size_t)head * d,
          *latents = kv->latents + (size_t)head * d; /* no other head's or group's */
    size_t stride = channels(&cache->shape);
    calibrate_prompt(cache, kv, head, exact);
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level *level = &kv->level[i];
        if (head % level->n_head) continue; /* the group's first head does it */
        int part = head / level->n_head;
        float *x = level->basis ? latents : rows;
        bool chosen = kv->rule[i].limit.policy.keep != LK_POLICY_NONE;
        for (int64_t at = 0; at < kv->fill[i].rows;) {
            int row;
            int64_t n;
            void *block = (void *)lk_cache_locate(kv, i, at, &row, &n);
            int64_t pos = lk_cache_position(kv, i, at, head),
                    gone = at == 0 && kv->rule[i].block_rows <= LK_MAX_MOVE ? row : 0;
            if (gone + n > LK_MAX_MOVE) n = LK_MAX_MOVE - gone;
            for (int64_t r = 0; chosen && r < n; r++)
                lk_read_part(exact, 0, lk_cache_position(kv, i, at + r, head), 1, level, part, d,
                             cache->kernels, rows + r * stride, x + r * stride, stride);
            /* Rows that have left a block were coded with it. */
            if (!chosen)
                lk_read_part(exact, 0, pos - gone, gone + n, level, part, d, cache->kernels, rows,
                             x, stride);
            put_part(cache, kv, i, block, row - (int)gone, gone + n, part, x);
            at += n;
        }
    }
}

bool lk_cache_cuts_back(const struct lk_cache *cache, int64_t n_tok) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            if (kv->n_tok - n_tok > kv->fill[kv->n_level - 1].rows) return false;
            /* What let rows go may have let go what an earlier query sees. */
            if (kv->n_swa == 0 && kv->first > 0) return false;
            if (kv->evict && kv->evict->needs_scores && n_tok < kv->n_tok) return false;
            if (kv->n_swa > 0 && kv->first > 0 && n_tok - kv->n_swa + 1 < kv->first) return false;
        }
    return true;
}

bool lk_cache_truncate(struct lk_cache *cache, int64_t n_tok) {
    if (!lk_cache_cuts_back(cache, n_tok)) return false;
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            struct lk_kv *kv = &cache->kv[layer][side];
            int newest = kv->n_level - 1;
            kv->fill[newest].rows -= kv->n_tok - n_tok;
            if (kv->evict && side == LK_K) cache->evict[layer].n -= kv->n_tok - n_tok;
            kv->n_tok = n_tok;
            struct lk_level *level = &kv->level[newest];
            int64_t keep = lk_level_blocks(&kv->rule[newest], &kv->fill[newest]);
            while (level->n_block > keep)
                lk_pool_free(&cache->pool, level->block_bytes, level->block[--level->n_block]);
            if (kv->fill[newest].rows == 0) kv->fill[newest].skip = 0;
        }
    if (cache->pool.n_shared)
        lk_cache_trim(
            cache); /* a block that is written to again may want a copy that nobody reserved */
    return true;
}

/* ---- counting ---- */

struct lk_cache_bytes lk_cache_count(const struct lk_cache *cache) {
    struct lk_cache_bytes sum = {0};
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        sum.scale += lk_evict_bytes(&cache->evict[layer], cache->evict[layer].n);
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            for (int i = 0; i < 2; i++) sum.scale += lk_equalizer_bytes(&kv->equalizer[i]);
            for (int i = 0; i < kv->n_level; i++) {
                const struct lk_level *level = &kv->level[i];
                const struct lk_level_rule *rule = &kv->rule[i];
                uint64_t bytes = level->n_block * level->block_bytes,
                         scales = level->n_block * level->scale_bytes;
                int64_t evict = level->n_block * rule->block_rows;
                uint64_t used = evict ? (bytes - scales) * kv->fill[i].rows / evict : 0;
                if (rule->codec.coding == LK_F16 && !level->basis)
                    sum.exact += used;
                else
                    sum.code += used;
                sum.scale += scales;
            }
        }
    sum.padding = lk_ledger_bytes(cache->ledger, LK_FOR_CACHE) +
                  atomic_load(&cache->ledger->borrowed) - sum.code - sum.scale - sum.exact;
    return sum;
}

uint64_t lk_cache_f16_bytes(const struct lk_cache_shape *shape, int64_t n_tok) {
    uint64_t rows = 0;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        bool swa = shape->is_swa && shape->is_swa[layer];
        rows += swa && n_tok > shape->n_swa ? shape->n_swa : n_tok;
    }
    return rows * channels(shape) * 2 * sizeof(uint16_t);
}

struct lk_cache_widths lk_cache_measure(const struct lk_cache *cache) {
    struct lk_cache_widths most = {.part = cache->shape.d_head};
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < cache->kv[layer][side].n_level; i++) {
                const struct lk_level *level = &cache->kv[layer][side].level[i];
                if (level->d_part > most.part) most.part = level->d_part;
                if (level->basis && side == LK_V && level->d_part > most.latent)
                    most.latent = level->d_part;
            }
    return most;
}

/* Blocks that a cache of n_tok tokens holds, entered into its pool's classes as wanted. */
static int foresee_stream(struct lk_cache *cache, struct lk_kv *kv, int64_t n_tok,
                          uint64_t *tables) {
    for (int64_t done = 0; done < n_tok;) {
        int64_t n = n_tok - done < LK_MAX_MOVE ? n_tok - done : LK_MAX_MOVE;
        lk_level_advance(kv->rule, kv->fill, kv->n_level, done, n, kv->n_swa, &kv->first, NULL);
        done += n;
    }
    int ok = 1;
    if (kv->evict && kv->side == LK_K) *tables += lk_evict_bytes(kv->evict, n_tok - kv->first);
    for (int i = 0; i < kv->n_level; i++) {
        int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->fill[i]);
        *tables += n_block * sizeof(void *);
        ok &= lk_pool_reserve(&cache->pool, kv->level[i].block_bytes, n_block);
        kv->fill[i] = (struct lk_fill){0};
    }
    return ok;
}

struct lk_evict_scratch lk_evict_scratch(const struct lk_cache *cache, int64_t n_tok) {
    bool chooses = false, needs_scores = false;
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_evict *evict = cache->kv[layer][LK_K].evict;
        chooses |= evict != NULL;
        needs_scores |= evict && evict->needs_scores;
    }
    size_t n = (size_t)n_tok * cache->shape.n_head_kv;
    return (struct lk_evict_scratch){.attn_scores = needs_scores * n * sizeof(float),
                                     .order = chooses * n * sizeof(struct lk_ranked)};
}

lk_status lk_cache_estimate(const struct lk_recipe *recipe, const struct lk_cache_shape *shape,
                            int64_t n_tok, struct lk_cache_needs *out, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_cache *cache;
    lk_status status = make(&cache, recipe, shape, &ledger, err);
    if (status != LK_OK) return status;
    uint64_t sum = lk_ledger_bytes(&ledger, LK_FOR_CACHE);
    int ok = 1;
    for (int layer = 0; layer < shape->n_layer; layer++)
        for (int side = 0; side < 2; side++)
            ok &= foresee_stream(cache, &cache->kv[layer][side], n_tok, &sum);
    for (int i = 0; i < cache->pool.n_class; i++) {
        const struct lk_pool_class *class = &cache->pool.class[i];
        uint64_t n_slab = (class->n_wanted + class->n_block - 1) / class->n_block;
        sum += n_slab * class->n_block * class->size;
    }
    struct lk_cache_needs needs = {.cache = sum,
                                   .scratch = lk_ledger_bytes(&ledger, LK_FOR_SCRATCH),
                                   .choice = lk_evict_scratch(cache, n_tok),
                                   .width = lk_cache_measure(cache)};
    lk_cache_free(cache);
    if (!ok)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the recipe has more kinds of blocks than a cache can hold");
    *out = needs;
    return LK_OK;
}
