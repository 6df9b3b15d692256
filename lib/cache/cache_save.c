#include "cache/cache_save.h"

#include "base/splitmix64.h"

#include <string.h>

/* Floats of one array of channel statistics. */
static size_t statistics_bytes(const struct lk_equalizer *equalizer) {
    return (size_t)equalizer->n_part * equalizer->stride * sizeof(float);
}

static size_t statistics_of(const struct lk_kv *kv) {
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        const struct lk_equalizer *e = &kv->equalizer[i];
        bytes += statistics_bytes(e) * ((e->sigma != NULL) + (e->query != NULL));
    }
    return bytes;
}

/* One bit for rows, one for latents. */
static int calibrated(const struct lk_kv *kv) {
    return kv->equalizer[0].calibrated | kv->equalizer[1].calibrated << 1;
}

/* Can the stream let rows go? */
static bool drops(const struct lk_kv *kv) {
    bool limited = kv->n_swa > 0;
    for (int i = 0; i < kv->n_level; i++)
        limited |= kv->rule[i].limit.policy.keep != LK_POLICY_NONE;
    return limited;
}

/* What decides, beside codecs and sizes, which rows a level has and how they are attended to. */
static uint32_t others_of(const struct lk_level_rule *rule) {
    const struct lk_limit *limit = &rule->limit;
    if (limit->policy.keep == LK_POLICY_NONE && !rule->shift) return 0;
    uint32_t all[] = {limit->policy.keep,
                      limit->policy.mean,
                      limit->policy.apart,
                      limit->of_context,
                      rule->shift,
                      limit->n_tok,
                      0};
    memcpy(&all[6], &limit->percent, sizeof all[6]);
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hash = lk_splitmix64(hash + lk_splitmix64_step + all[i]);
    return (uint32_t)hash | 1;
}

/* A level as it is written. */
static struct lk_saved_level describe(const struct lk_kv *kv, int i) {
    const struct lk_level_rule *rule = &kv->rule[i];
    struct lk_saved_level saved = {.block_bytes = (int64_t)kv->level[i].block_bytes,
                                   .n_block = kv->level[i].n_block,
                                   .rows = kv->fill[i].rows,
                                   .skip = kv->fill[i].skip,
                                   .block_rows = rule->block_rows,
                                   .batch = rule->batch,
                                   .keep = rule->keep,
                                   .percent = rule->percent,
                                   .others = others_of(rule)};
    lk_codec_print(&rule->codec, kv->side, saved.codec, sizeof saved.codec);
    return saved;
}

bool lk_cache_put_counts(const struct lk_cache *cache, const struct lk_writer *sink) {
    bool ok = true;
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            struct lk_saved_kv saved = {kv->first, kv->n_tok, kv->n_level, calibrated(kv)};
            ok = ok && sink->put(sink->user, &saved, sizeof saved);
            for (int i = 0; ok && i < kv->n_level; i++) {
                struct lk_saved_level level = describe(kv, i);
                ok = sink->put(sink->user, &level, sizeof level);
            }
        }
    return ok;
}

bool lk_cache_put_rows(const struct lk_cache *cache, const struct lk_writer *sink) {
    bool ok = true;
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            for (int i = 0; i < 2; i++) {
                const struct lk_equalizer *e = &kv->equalizer[i];
                if (e->sigma) ok = ok && sink->put(sink->user, e->sigma, statistics_bytes(e));
                if (e->query) ok = ok && sink->put(sink->user, e->query, statistics_bytes(e));
            }
            for (int i = 0; i < kv->n_level; i++)
                for (int64_t b = 0; ok && b < kv->level[i].n_block; b++)
                    ok = sink->put(sink->user, kv->level[i].block[b], kv->level[i].block_bytes);
        }
    return ok;
}

/* ---- checking ---- */

/* The next n bytes of what is left, or NULL. */
static const void *next(const char **at, size_t *left, size_t n) {
    if (*left < n) return NULL;
    const char *here = *at;
    *at += n;
    *left -= n;
    return here;
}

static bool same_level(const struct lk_saved_level *a, const struct lk_saved_level *b) {
    return memcmp(a->codec, b->codec, sizeof a->codec) == 0 && a->block_bytes == b->block_bytes &&
           a->block_rows == b->block_rows && a->batch == b->batch && a->keep == b->keep &&
           a->percent == b->percent && a->others == b->others;
}

bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b) {
    if (a->shape.n_layer != b->shape.n_layer) return false;
    for (int layer = 0; layer < a->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *x = &a->kv[layer][side], *y = &b->kv[layer][side];
            if (x->n_level != y->n_level) return false;
            for (int i = 0; i < x->n_level; i++) {
                struct lk_saved_level one = describe(x, i), other = describe(y, i);
                if (!same_level(&one, &other)) return false;
            }
        }
    return true;
}

/* Rows that lie as appending and settling could have left them. */
static bool is_possible(const struct lk_kv *kv, int i, const struct lk_saved_level *saved,
                        int64_t n_tok, int calibrated) {
    const struct lk_level_rule *rule = &kv->rule[i];
    if (saved->rows < 0 || saved->rows > n_tok || saved->skip < 0 ||
        saved->skip >= rule->block_rows)
        return false;
    if (saved->rows == 0 && saved->skip != 0) return false;
    struct lk_fill fill = {saved->rows, saved->skip};
    if (saved->n_block != lk_level_blocks(rule, &fill)) return false;
    if (!lk_codec_row_wise(&rule->codec, kv->side) &&
        (saved->skip + saved->rows) % rule->block_rows != 0)
        return false;
    if (rule->codec.sigma && saved->rows > 0 && !(calibrated >> (kv->level[i].basis != NULL) & 1))
        return false;
    int64_t sinks = i == 0 ? lk_level_sinks(kv->rule, kv->n_level) : 0;
    return sinks == 0 || (saved->skip == 0 && saved->rows == (n_tok < sinks ? n_tok : sinks));
}

static const char *check_stream(const struct lk_kv *kv, const char **at, size_t *left,
                                int64_t n_tok, uint64_t *bytes) {
    static const char *const cut = "its counts are cut short",
                             *const wrong = "its counts contradict themselves",
                             *const other = "its cache was kept by another recipe than this "
                                            "session's, or for another shape of model";
    struct lk_saved_kv saved;
    const void *from = next(at, left, sizeof saved);
    if (!from) return cut;
    memcpy(&saved, from, sizeof saved);
    if (saved.n_level != kv->n_level) return other;
    if (saved.n_tok != n_tok || saved.first < 0 || saved.first > n_tok ||
        (saved.first > 0 && !drops(kv)))
        return wrong;
    if (saved.calibrated < 0 || saved.calibrated > 3) return wrong;
    int64_t rows = 0;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_saved_level level, own = describe(kv, i);
        from = next(at, left, sizeof level);
        if (!from) return cut;
        memcpy(&level, from, sizeof level);
        if (!same_level(&level, &own)) return other;
        if (!is_possible(kv, i, &level, n_tok, saved.calibrated)) return wrong;
        rows += level.rows;
        *bytes += (uint64_t)level.n_block * kv->level[i].block_bytes;
    }
    *bytes += statistics_of(kv);
    return rows == n_tok - saved.first ? NULL : wrong;
}

lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         uint64_t n_row, int64_t n_tok, lk_err *err) {
    const char *at = counts, *reason = NULL;
    uint64_t bytes = 0;
    for (int layer = 0; !reason && layer < cache->shape.n_layer; layer++)
        for (int side = 0; !reason && side < 2; side++)
            reason = check_stream(&cache->kv[layer][side], &at, &n_count, n_tok, &bytes);
    if (!reason && (n_count != 0 || bytes != n_row))
        reason = "its rows are not as many as its counts say";
    return reason ? lk_fail(err, LK_E_FORMAT, "%s", reason) : LK_OK;
}

/* ---- restoring ---- */

static void restore_counts(struct lk_kv *kv, const char **at) {
    struct lk_saved_kv saved;
    memcpy(&saved, *at, sizeof saved);
    *at += sizeof saved;
    kv->first = saved.first;
    kv->n_tok = saved.n_tok;
    for (int i = 0; i < 2; i++) kv->equalizer[i].calibrated = saved.calibrated >> i & 1;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_saved_level level;
        memcpy(&level, *at, sizeof level);
        *at += sizeof level;
        kv->fill[i] = (struct lk_fill){level.rows, level.skip};
    }
}

static void take(void *to, const char **at, size_t n) {
    memcpy(to, *at, n);
    *at += n;
}

static void restore_rows(struct lk_kv *kv, const char **at) {
    for (int i = 0; i < 2; i++) {
        struct lk_equalizer *e = &kv->equalizer[i];
        if (e->sigma) take(e->sigma, at, statistics_bytes(e));
        if (e->query) take(e->query, at, statistics_bytes(e));
    }
    for (int i = 0; i < kv->n_level; i++)
        for (int64_t b = 0; b < kv->level[i].n_block; b++)
            take(kv->level[i].block[b], at, kv->level[i].block_bytes);
}

lk_status lk_cache_restore(struct lk_cache *cache, const void *counts, const void *rows,
                           lk_err *err) {
    const char *count_at = counts, *row_at = rows;
    lk_cache_clear(cache);
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        for (int side = 0; side < 2; side++) restore_counts(&cache->kv[layer][side], &count_at);
        lk_status status = lk_cache_take_blocks(cache, layer, err);
        if (status != LK_OK) {
            lk_cache_clear(cache);
            return status;
        }
        for (int side = 0; side < 2; side++) restore_rows(&cache->kv[layer][side], &row_at);
    }
    lk_cache_trim(cache);
    return LK_OK;
}
