/* Serialization of a cache: writing, checking, restoring. */
#include "cache/cache_save.h"

#include "base/splitmix64.h"
#include "cache/equalizer.h"

#include <string.h>

/* Bytes of one array of channel statistics. */
static size_t statistics_bytes(const struct lk_equalizer *equalizer) {
    return (size_t)equalizer->n_part * equalizer->stride * sizeof(float);
}

/* Can rows be evicted? */
static bool can_evict(const struct lk_kv *kv) {
    bool limited = kv->n_swa > 0;
    for (int i = 0; i < kv->n_level; i++)
        limited |= kv->rule[i].limit.policy.kind != LK_POLICY_NONE;
    return limited;
}

/* Hash of what decides, besides codecs and sizes, which rows a level holds and how they are
 * scored. */
static uint32_t hash_limit(const struct lk_level_rule *rule) {
    const struct lk_limit *limit = &rule->limit;
    if (limit->policy.kind == LK_POLICY_NONE && !rule->shift) return 0;
    uint32_t all[] = {limit->policy.kind,
                      limit->policy.mean,
                      limit->policy.per_head,
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

static struct lk_saved_level describe_level(const struct lk_kv *kv, int i) {
    const struct lk_level_rule *rule = &kv->rule[i];
    struct lk_saved_level saved = {.block_bytes = (int64_t)kv->level[i].block_bytes,
                                   .n_block = kv->level[i].n_block,
                                   .rows = kv->count[i].rows,
                                   .skip = kv->count[i].skip,
                                   .block_rows = rule->block_rows,
                                   .batch = rule->batch,
                                   .keep = rule->keep,
                                   .percent = rule->percent,
                                   .limit_hash = hash_limit(rule)};
    lk_codec_print(&rule->codec, kv->side, saved.codec, sizeof saved.codec);
    return saved;
}

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
            struct lk_saved_level level = describe_level(kv, i);
            ok = writer->put(writer->user, &level, sizeof level);
        }
    }
    return ok;
}

bool lk_cache_write_rows(const struct lk_cache *cache, const struct lk_writer *writer) {
    bool ok = true;
    for (int k = 0; ok && k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < 2; i++) {
            const struct lk_equalizer *e = &kv->equalizer[i];
            size_t n = statistics_bytes(e);
            if (e->sigma) ok = ok && writer->put(writer->user, e->sigma, n);
            if (e->query_power) ok = ok && writer->put(writer->user, e->query_power, n);
        }
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; ok && b < kv->level[i].n_block; b++)
                ok = writer->put(writer->user, kv->level[i].block[b], kv->level[i].block_bytes);
    }
    return ok;
}

/* ---- checking ---- */

/* Advance *at by n bytes and return what lies there. NULL if fewer than n bytes are left. */
static const void *read_bytes(const char **at, size_t *left, size_t n) {
    if (*left < n) return NULL;
    const char *here = *at;
    *at += n;
    *left -= n;
    return here;
}

static bool same_level(const struct lk_saved_level *a, const struct lk_saved_level *b) {
    return memcmp(a->codec, b->codec, sizeof a->codec) == 0 && a->block_bytes == b->block_bytes &&
           a->block_rows == b->block_rows && a->batch == b->batch && a->keep == b->keep &&
           a->percent == b->percent && a->limit_hash == b->limit_hash;
}

bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b) {
    if (a->shape.n_layer != b->shape.n_layer) return false;
    for (int k = 0; k < lk_cache_n_kv(a); k++) {
        const struct lk_kv *x = lk_cache_kv(a, k), *y = lk_cache_kv(b, k);
        if (x->n_level != y->n_level) return false;
        for (int i = 0; i < x->n_level; i++) {
            struct lk_saved_level one = describe_level(x, i), other = describe_level(y, i);
            if (!same_level(&one, &other)) return false;
        }
    }
    return true;
}

/* Can appending and aging leave a level's rows like this? */
static bool is_possible(const struct lk_kv *kv, int i, const struct lk_saved_level *saved,
                        int64_t n_tok, int calibrated) {
    const struct lk_level_rule *rule = &kv->rule[i];
    if (saved->rows < 0 || saved->rows > n_tok || saved->skip < 0 ||
        saved->skip >= rule->block_rows)
        return false;
    if (saved->rows == 0 && saved->skip != 0) return false;
    struct lk_level_count count = {saved->rows, saved->skip};
    if (saved->n_block != lk_level_blocks(rule, &count)) return false;
    if (!lk_codec_row_wise(&rule->codec, kv->side) &&
        (saved->skip + saved->rows) % rule->block_rows != 0)
        return false;
    if (rule->codec.sigma && saved->rows > 0 && !(calibrated >> (kv->level[i].basis != NULL) & 1))
        return false;
    int64_t n_sink = i == 0 ? lk_level_sinks(kv->rule, kv->n_level) : 0;
    return n_sink == 0 || (saved->skip == 0 && saved->rows == (n_tok < n_sink ? n_tok : n_sink));
}

/* Check the counts of K or V of one layer and add up the bytes of its rows. Returns NULL or the
 * reason for rejecting them. */
static const char *check_kv(const struct lk_kv *kv, const char **at, size_t *left, int64_t n_tok,
                            uint64_t *bytes) {
    static const char *const truncated = "its counts are truncated",
                             *const inconsistent = "its counts are inconsistent",
                             *const other = "its cache was saved with another recipe or for a "
                                            "model of another shape";
    struct lk_saved_kv saved;
    const void *from = read_bytes(at, left, sizeof saved);
    if (!from) return truncated;
    memcpy(&saved, from, sizeof saved);
    if (saved.n_level != kv->n_level) return other;
    if (saved.n_tok != n_tok || saved.first < 0 || saved.first > n_tok ||
        (saved.first > 0 && !can_evict(kv)))
        return inconsistent;
    if (saved.calibrated < 0 || saved.calibrated > 3) return inconsistent;
    int64_t rows = 0;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_saved_level level, own = describe_level(kv, i);
        from = read_bytes(at, left, sizeof level);
        if (!from) return truncated;
        memcpy(&level, from, sizeof level);
        if (!same_level(&level, &own)) return other;
        if (!is_possible(kv, i, &level, n_tok, saved.calibrated)) return inconsistent;
        rows += level.rows;
        *bytes += (uint64_t)level.n_block * kv->level[i].block_bytes;
    }
    for (int i = 0; i < 2; i++) *bytes += lk_equalizer_bytes(&kv->equalizer[i]);
    return rows == n_tok - saved.first ? NULL : inconsistent;
}

lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         uint64_t n_row, int64_t n_tok, lk_err *err) {
    const char *at = counts, *reason = NULL;
    uint64_t bytes = 0;
    for (int k = 0; !reason && k < lk_cache_n_kv(cache); k++)
        reason = check_kv(lk_cache_kv(cache, k), &at, &n_count, n_tok, &bytes);
    if (!reason && (n_count != 0 || bytes != n_row))
        reason = "its number of rows does not match its counts";
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
        kv->count[i] = (struct lk_level_count){level.rows, level.skip};
    }
}

static void copy_bytes(void *to, const char **at, size_t n) {
    memcpy(to, *at, n);
    *at += n;
}

static void restore_rows(struct lk_kv *kv, const char **at) {
    for (int i = 0; i < 2; i++) {
        struct lk_equalizer *e = &kv->equalizer[i];
        if (e->sigma) copy_bytes(e->sigma, at, statistics_bytes(e));
        if (e->query_power) copy_bytes(e->query_power, at, statistics_bytes(e));
    }
    for (int i = 0; i < kv->n_level; i++)
        for (int64_t b = 0; b < kv->level[i].n_block; b++)
            copy_bytes(kv->level[i].block[b], at, kv->level[i].block_bytes);
}

lk_status lk_cache_restore(struct lk_cache *cache, const void *counts, const void *rows,
                           lk_err *err) {
    const char *count_at = counts, *row_at = rows;
    lk_cache_clear(cache);
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        for (int side = 0; side < 2; side++) restore_counts(&cache->kv[layer][side], &count_at);
        lk_status status = lk_cache_alloc_blocks(cache, layer, err);
        if (status != LK_OK) {
            lk_cache_clear(cache);
            return status;
        }
        for (int side = 0; side < 2; side++) restore_rows(&cache->kv[layer][side], &row_at);
    }
    lk_cache_trim(cache);
    return LK_OK;
}
