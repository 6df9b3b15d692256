#include "cache/cache.h"

#include "cache/calibrate.h"

#include <string.h>

static size_t channels(const struct lk_cache_shape *shape) { return (size_t)shape->n_head_kv * shape->d_head; }

static lk_status init_stream(struct lk_cache *cache, const struct lk_recipe *recipe, int layer, enum lk_side side, lk_err *err) {
    const struct lk_cache_shape *shape = &cache->shape;
    struct lk_stream *stream = &cache->stream[layer][side];
    bool swa = shape->is_swa && shape->is_swa[layer];
    stream->side = side;
    stream->n_swa = swa ? shape->n_swa : 0;
    stream->n_level = lk_level_rules(recipe, layer, shape->n_layer, side, swa, stream->rule);
    stream->rows = cache->rows[side];
    bool sigma = false;
    for (int i = 0; i < stream->n_level; i++) {
        const struct lk_level_rule *rule = &stream->rule[i];
        const char *reason = lk_codec_refuses(&rule->codec, side, shape->d_head);
        if (reason) return lk_fail(err, LK_E_UNSUPPORTED, "this model's heads of %d channels cannot be kept so: %s", shape->d_head, reason);
        struct lk_level *level = &stream->level[i];
        level->head_bytes = lk_codec_head_bytes(&rule->codec, side, shape->d_head, rule->block_rows);
        level->block_bytes = level->head_bytes * shape->n_head_kv;
        level->scale_bytes = lk_codec_head_scale_bytes(&rule->codec, side, shape->d_head, rule->block_rows) * shape->n_head_kv;
        sigma |= rule->codec.sigma;
    }
    if (!sigma) return LK_OK;
    stream->sigma = lk_alloc(cache->ledger, LK_FOR_CACHE, channels(shape) * sizeof(float));
    if (side == LK_K) stream->query = lk_alloc(cache->ledger, LK_FOR_CACHE, channels(shape) * sizeof(float));
    return stream->sigma && (side == LK_V || stream->query) ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for the cache's channel statistics");
}

lk_status lk_cache_new(struct lk_cache **out, const struct lk_recipe *recipe, const struct lk_cache_shape *shape,
                       struct lk_ledger *ledger, lk_err *err) {
    struct lk_cache *cache = lk_alloc(ledger, LK_FOR_OTHER, sizeof *cache);
    if (!cache) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    cache->ledger = ledger;
    cache->shape = *shape;
    cache->kern = lk_kern_choose(NULL); /* all tables write the same bits */
    lk_pool_init(&cache->pool, ledger);
    cache->stream = lk_alloc(ledger, LK_FOR_OTHER, shape->n_layer * sizeof *cache->stream);
    for (int side = 0; side < 2; side++)
        cache->rows[side] = lk_alloc(ledger, LK_FOR_SCRATCH, LK_MAX_MOVE * channels(shape) * sizeof(float));
    lk_status status = LK_OK;
    if (!cache->stream || !cache->rows[LK_K] || !cache->rows[LK_V]) status = lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    for (int layer = 0; status == LK_OK && layer < shape->n_layer; layer++)
        for (int side = 0; status == LK_OK && side < 2; side++) status = init_stream(cache, recipe, layer, side, err);
    if (status != LK_OK) lk_cache_free(cache);
    else *out = cache;
    return status;
}

void lk_cache_clear(struct lk_cache *cache) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            struct lk_stream *stream = &cache->stream[layer][side];
            for (int i = 0; i < stream->n_level; i++) {
                struct lk_level *level = &stream->level[i];
                for (int64_t b = 0; b < level->n_block; b++) lk_pool_give(&cache->pool, level->block_bytes, level->block[b]);
                lk_release(cache->ledger, LK_FOR_CACHE, level->block, level->cap * sizeof *level->block);
                level->block = NULL;
                level->n_block = level->cap = 0;
                stream->fill[i] = (struct lk_fill){0};
            }
            stream->first = stream->n_tok = 0;
            stream->calibrated = false;
            if (stream->query) memset(stream->query, 0, channels(&cache->shape) * sizeof(float));
        }
    lk_cache_trim(cache);
}

void lk_cache_free(struct lk_cache *cache) {
    if (!cache) return;
    if (cache->stream) {
        lk_cache_clear(cache);
        for (int layer = 0; layer < cache->shape.n_layer; layer++)
            for (int side = 0; side < 2; side++) {
                struct lk_stream *stream = &cache->stream[layer][side];
                lk_release(cache->ledger, LK_FOR_CACHE, stream->sigma, channels(&cache->shape) * sizeof(float));
                lk_release(cache->ledger, LK_FOR_CACHE, stream->query, channels(&cache->shape) * sizeof(float));
            }
        lk_release(cache->ledger, LK_FOR_OTHER, cache->stream, cache->shape.n_layer * sizeof *cache->stream);
    }
    for (int side = 0; side < 2; side++)
        lk_release(cache->ledger, LK_FOR_SCRATCH, cache->rows[side], LK_MAX_MOVE * channels(&cache->shape) * sizeof(float));
    lk_pool_destroy(&cache->pool);
    lk_release(cache->ledger, LK_FOR_OTHER, cache, sizeof *cache);
}

/* ---- memory for what is to come -------------------------------------------------------------- */

bool lk_cache_has_room(struct lk_cache *cache, struct lk_level *level, int64_t n_block) {
    if (n_block <= level->cap) return true;
    int64_t cap = n_block + n_block / 8 + 4;
    if (!lk_grow(cache->ledger, LK_FOR_CACHE, (void **)&level->block, level->cap * sizeof *level->block, cap * sizeof *level->block)) return false;
    level->cap = cap;
    return true;
}

static int want_for_stream(struct lk_cache *cache, struct lk_stream *stream, int64_t n_new, int64_t portion) {
    struct lk_fill fill[LK_MAX_STREAM_LEVEL];
    int64_t most[LK_MAX_STREAM_LEVEL] = {0}, first = stream->first, n_tok = stream->n_tok;
    memcpy(fill, stream->fill, sizeof fill);
    for (int64_t done = 0; done < n_new;) {
        int64_t n = n_new - done < portion ? n_new - done : portion;
        lk_level_advance(stream->rule, fill, stream->n_level, n_tok + done, n, stream->n_swa, &first, most);
        done += n;
    }
    for (int i = 0; i < stream->n_level; i++) {
        struct lk_level *level = &stream->level[i];
        if (!lk_cache_has_room(cache, level, most[i])) return 0;
        int64_t more = most[i] - level->n_block;
        if (more > 0 && !lk_pool_want(&cache->pool, level->block_bytes, more)) return 0;
    }
    return 1;
}

lk_status lk_cache_prepare(struct lk_cache *cache, int layer0, int layer1, int64_t n_new, int64_t portion, lk_err *err) {
    lk_pool_want_none(&cache->pool);
    cache->reserved = 0;
    int ok = 1;
    for (int layer = layer0; ok && layer < layer1; layer++)
        for (int side = 0; ok && side < 2; side++) ok = want_for_stream(cache, &cache->stream[layer][side], n_new, portion);
    if (ok && lk_pool_fill(&cache->pool)) return LK_OK;
    lk_pool_want_none(&cache->pool);
    lk_pool_trim(&cache->pool);
    return lk_fail(err, LK_E_NOMEM, "no memory for %lld more tokens of cache; use a smaller recipe or context", (long long)n_new);
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
    lk_pool_want_none(&cache->pool);
    lk_pool_trim(&cache->pool);
}

/* ---- rows in, rows out ------------------------------------------------------------------------ */

const void *lk_cache_locate(const struct lk_stream *stream, int level, int64_t at, int *row, int64_t *n) {
    int64_t slot = stream->fill[level].skip + at;
    int block_rows = stream->rule[level].block_rows;
    *row = (int)(slot % block_rows);
    int64_t in_block = block_rows - *row, in_level = stream->fill[level].rows - at;
    *n = in_block < in_level ? in_block : in_level;
    return stream->level[level].block[slot / block_rows];
}

/* Encode one head's rows x, a token's channels apart, as rows [row, row + n) of a level's block. */
static void put_head(const struct lk_cache *cache, const struct lk_stream *stream, int i, void *block, int row, int64_t n,
                     int head, const float *x) {
    const struct lk_level_rule *rule = &stream->rule[i];
    int d = cache->shape.d_head;
    cache->kern->encode(&rule->codec, stream->side, d, rule->block_rows, rule->codec.sigma ? stream->sigma + (size_t)head * d : NULL,
                        (char *)block + head * stream->level[i].head_bytes, row, (int)n, x, channels(&cache->shape));
}

/* A block for a level's coming rows. */
static int add_block(struct lk_cache *cache, struct lk_level *level) {
    if (!lk_cache_has_room(cache, level, level->n_block + 1)) return 0;
    void *block = lk_pool_take(&cache->pool, level->block_bytes);
    if (block) level->block[level->n_block++] = block;
    return block != NULL;
}

/* Encode x [n][n_head_kv][d_head] behind the level's newest row. */
static int put_rows(struct lk_cache *cache, struct lk_stream *stream, int i, const float *x, int64_t n) {
    const struct lk_level_rule *rule = &stream->rule[i];
    struct lk_level *level = &stream->level[i];
    struct lk_fill *fill = &stream->fill[i];
    size_t stride = channels(&cache->shape);
    while (n > 0) {
        int64_t slot = fill->skip + fill->rows;
        if (slot / rule->block_rows >= level->n_block && !add_block(cache, level)) return 0;
        int row = (int)(slot % rule->block_rows);
        int64_t take = rule->block_rows - row < n ? rule->block_rows - row : n;
        for (int h = 0; h < cache->shape.n_head_kv; h++)
            put_head(cache, stream, i, level->block[level->n_block - 1], row, take, h, x + (size_t)h * cache->shape.d_head);
        lk_level_put(fill, take);
        x += take * stride;
        n -= take;
    }
    return 1;
}

/* Decode the level's oldest n <= LK_MAX_MOVE rows into stream->rows. */
static void read_oldest(const struct lk_cache *cache, const struct lk_stream *stream, int i, int64_t n) {
    int d = cache->shape.d_head;
    for (int h = 0; h < cache->shape.n_head_kv; h++)
        lk_read_rows(stream, i, 0, n, h, d, cache->kern, stream->rows + (size_t)h * d, channels(&cache->shape));
}

static void drop_oldest(struct lk_cache *cache, struct lk_stream *stream, int i, int64_t n) {
    struct lk_level *level = &stream->level[i];
    struct lk_fill *fill = &stream->fill[i];
    int64_t gone = (fill->skip + n) / stream->rule[i].block_rows;
    if (n == fill->rows) gone = level->n_block;
    lk_level_take(&stream->rule[i], fill, n);
    for (int64_t b = 0; b < gone; b++) lk_pool_give(&cache->pool, level->block_bytes, level->block[b]);
    level->n_block -= gone;
    memmove(level->block, level->block + gone, level->n_block * sizeof *level->block);
}

lk_status lk_cache_append(struct lk_cache *cache, int layer, enum lk_side side, const float *x, int64_t n, lk_err *err) {
    struct lk_stream *stream = &cache->stream[layer][side];
    int64_t sinks = (int64_t)lk_level_sinks(stream->rule, stream->n_level) - stream->n_tok;
    if (sinks < 0) sinks = 0;
    if (sinks > n) sinks = n;
    stream->n_tok += n;
    if (put_rows(cache, stream, 0, x, sinks) &&
        put_rows(cache, stream, stream->n_level - 1, x + sinks * channels(&cache->shape), n - sinks)) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
}

void lk_cache_observe(struct lk_cache *cache, int layer, const float *q, int n_tok, int n_head) {
    struct lk_stream *stream = &cache->stream[layer][LK_K];
    if (!stream->query || stream->calibrated) return;
    int d = cache->shape.d_head, group = n_head / cache->shape.n_head_kv;
    for (int t = 0; t < n_tok; t++)
        for (int h = 0; h < n_head; h++, q += d)
            for (int c = 0; c < d; c++) stream->query[h / group * d + c] += q[c] * q[c];
}

lk_status lk_cache_settle(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err) {
    struct lk_stream *stream = &cache->stream[layer][side];
    int from, batch;
    while (lk_level_next_move(stream->rule, stream->fill, stream->n_level, stream->n_tok, &from, &batch)) {
        if (stream->rule[from - 1].codec.sigma && !stream->calibrated) {
            for (int h = 0; h < cache->shape.n_head_kv; h++)
                lk_calibrate(stream, h, cache->shape.d_head, cache->kern, stream, from, 0, stream->fill[from].rows / LK_TILE, stream->rows);
            stream->calibrated = true;
        }
        for (int left = batch; left > 0;) {
            int n = left < LK_MAX_MOVE ? left : LK_MAX_MOVE;
            read_oldest(cache, stream, from, n);
            if (!put_rows(cache, stream, from - 1, stream->rows, n))
                return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
            drop_oldest(cache, stream, from, n);
            left -= n;
        }
    }
    for (int i = 0; stream->n_swa > 0 && i < stream->n_level; i++) {
        int64_t n = lk_level_droppable(&stream->rule[i], &stream->fill[i], stream->first, stream->n_tok, stream->n_swa);
        if (n) drop_oldest(cache, stream, i, n);
        stream->first += n;
        if (stream->fill[i].rows) break;
    }
    return LK_OK;
}

/* ---- whole prompts ------------------------------------------------------------------------------ */

lk_status lk_cache_lay(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err) {
    lk_pool_want_none(&cache->pool);
    cache->reserved = 0;
    int ok = 1;
    for (int side = 0; side < 2; side++) {
        struct lk_stream *stream = &cache->stream[layer][side];
        lk_level_advance(stream->rule, stream->fill, stream->n_level, 0, n_tok, stream->n_swa, &stream->first, NULL);
        stream->n_tok = n_tok;
        for (int i = 0; ok && i < stream->n_level; i++) {
            int64_t n_block = lk_level_blocks(&stream->rule[i], &stream->fill[i]);
            ok = lk_cache_has_room(cache, &stream->level[i], n_block) && (!n_block || lk_pool_want(&cache->pool, stream->level[i].block_bytes, n_block));
        }
    }
    ok = ok && lk_pool_fill(&cache->pool);
    for (int side = 0; side < 2; side++)
        for (int i = 0; ok && i < cache->stream[layer][side].n_level; i++) {
            struct lk_stream *stream = &cache->stream[layer][side];
            int64_t n_block = lk_level_blocks(&stream->rule[i], &stream->fill[i]);
            while (ok && stream->level[i].n_block < n_block) ok = add_block(cache, &stream->level[i]);
            /* Kernels multiply a tile's rows before the level's first by zero, which must not be 0 x NaN. */
            if (ok && n_block && stream->fill[i].skip) memset(stream->level[i].block[0], 0, stream->level[i].block_bytes);
        }
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d; use a smaller recipe or context", layer);
}

static bool needs_sigma(const struct lk_stream *stream) {
    for (int i = 0; i < stream->n_level; i++)
        if (stream->rule[i].codec.sigma && stream->fill[i].rows) return true;
    return false;
}

void lk_cache_fill(struct lk_cache *cache, int layer, enum lk_side side, int head, const struct lk_stream *exact) {
    struct lk_stream *stream = &cache->stream[layer][side];
    int d = cache->shape.d_head;
    size_t stride = channels(&cache->shape);
    float *rows = stream->rows + (size_t)head * d; /* no other head's */
    if (needs_sigma(stream)) {
        int64_t sinks = lk_level_sinks(stream->rule, stream->n_level), n = exact->n_tok - sinks;
        if (n > LK_OBSERVE_ROWS) n = LK_OBSERVE_ROWS;
        float tile[LK_TILE * LK_MAX_D_HEAD];
        lk_calibrate(stream, head, d, cache->kern, exact, 0, sinks, n / LK_TILE, tile);
        if (head == 0) stream->calibrated = true; /* one writer; nobody reads it before fill is done */
    }
    int64_t pos = stream->first;
    for (int i = 0; i < stream->n_level; pos += stream->fill[i].rows, i++)
        for (int64_t at = 0; at < stream->fill[i].rows;) {
            int row;
            int64_t n;
            void *block = (void *)lk_cache_locate(stream, i, at, &row, &n);
            if (n > LK_MAX_MOVE) n = LK_MAX_MOVE;
            lk_read_rows(exact, 0, pos + at, n, head, d, cache->kern, rows, stride);
            put_head(cache, stream, i, block, row, n, head, rows);
            at += n;
        }
}

bool lk_cache_truncate(struct lk_cache *cache, int64_t n_tok) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_stream *stream = &cache->stream[layer][side];
            if (stream->n_tok - n_tok > stream->fill[stream->n_level - 1].rows) return false;
            /* A sliding window that has dropped rows may have dropped what an earlier query sees. */
            if (stream->n_swa > 0 && stream->first > 0 && n_tok - stream->n_swa + 1 < stream->first) return false;
        }
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            struct lk_stream *stream = &cache->stream[layer][side];
            int newest = stream->n_level - 1;
            stream->fill[newest].rows -= stream->n_tok - n_tok;
            stream->n_tok = n_tok;
            struct lk_level *level = &stream->level[newest];
            int64_t keep = lk_level_blocks(&stream->rule[newest], &stream->fill[newest]);
            while (level->n_block > keep) lk_pool_give(&cache->pool, level->block_bytes, level->block[--level->n_block]);
            if (stream->fill[newest].rows == 0) stream->fill[newest].skip = 0;
        }
    return true;
}

/* ---- counting ---------------------------------------------------------------------------------- */

struct lk_cache_bytes lk_cache_count(const struct lk_cache *cache) {
    struct lk_cache_bytes sum = {0};
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_stream *stream = &cache->stream[layer][side];
            if (stream->sigma) sum.scale += channels(&cache->shape) * sizeof(float);
            if (stream->query) sum.scale += channels(&cache->shape) * sizeof(float);
            for (int i = 0; i < stream->n_level; i++) {
                const struct lk_level *level = &stream->level[i];
                const struct lk_level_rule *rule = &stream->rule[i];
                uint64_t bytes = level->n_block * level->block_bytes, scales = level->n_block * level->scale_bytes;
                int64_t slots = level->n_block * rule->block_rows;
                uint64_t used = slots ? (bytes - scales) * stream->fill[i].rows / slots : 0;
                if (rule->codec.coding == LK_F16) sum.exact += used;
                else sum.code += used;
                sum.scale += scales;
            }
        }
    sum.padding = lk_ledger_bytes(cache->ledger, LK_FOR_CACHE) - sum.code - sum.scale - sum.exact;
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

/* Blocks that a cache of n_tok tokens holds, entered into its pool's classes as wanted. */
static int foresee_stream(struct lk_cache *cache, struct lk_stream *stream, int64_t n_tok, uint64_t *tables) {
    for (int64_t done = 0; done < n_tok;) {
        int64_t n = n_tok - done < LK_MAX_MOVE ? n_tok - done : LK_MAX_MOVE;
        lk_level_advance(stream->rule, stream->fill, stream->n_level, done, n, stream->n_swa, &stream->first, NULL);
        done += n;
    }
    int ok = 1;
    for (int i = 0; i < stream->n_level; i++) {
        int64_t n_block = lk_level_blocks(&stream->rule[i], &stream->fill[i]);
        *tables += n_block * sizeof(void *);
        ok &= lk_pool_want(&cache->pool, stream->level[i].block_bytes, n_block);
        stream->fill[i] = (struct lk_fill){0};
    }
    return ok;
}

lk_status lk_cache_foresee(const struct lk_recipe *recipe, const struct lk_cache_shape *shape, int64_t n_tok,
                           uint64_t *bytes, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_cache *cache;
    lk_status status = lk_cache_new(&cache, recipe, shape, &ledger, err);
    if (status != LK_OK) return status;
    uint64_t sum = lk_ledger_bytes(&ledger, LK_FOR_CACHE);
    int ok = 1;
    for (int layer = 0; layer < shape->n_layer; layer++)
        for (int side = 0; side < 2; side++) ok &= foresee_stream(cache, &cache->stream[layer][side], n_tok, &sum);
    for (int i = 0; i < cache->pool.n_class; i++) {
        const struct lk_pool_class *class = &cache->pool.class[i];
        uint64_t n_slab = (class->n_wanted + class->n_block - 1) / class->n_block;
        sum += n_slab * class->n_block * class->size;
    }
    lk_cache_free(cache);
    if (!ok) return lk_fail(err, LK_E_UNSUPPORTED, "the recipe has more kinds of blocks than a cache can hold");
    *bytes = sum;
    return LK_OK;
}
