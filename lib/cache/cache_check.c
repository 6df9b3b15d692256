/* Checking the serialization of a cache. */
#include "cache/cache_check.h"

#include "base/hash.h"
#include "cache/equalizer.h"

#include <math.h>
#include <string.h>

/* Can a policy evict rows? */
static bool can_evict(const struct lk_kv *kv) {
    bool limited = false;
    for (int i = 0; i < kv->n_level; i++)
        limited |= kv->rule[i].limit.policy.kind != LK_POLICY_NONE;
    return limited;
}

/* Hash of what decides, besides the codec of most heads and sizes, which rows a level holds and how
 * they are packed and scored. */
static uint32_t hash_rule(const struct lk_level_rule *rule, enum lk_side side) {
    const struct lk_limit *limit = &rule->limit;
    if (limit->policy.kind == LK_POLICY_NONE && !rule->shift && !rule->n_other) return 0;
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
    for (int i = 0; i < rule->n_other; i++) {
        char codec[sizeof((struct lk_saved_level *)0)->codec] = {0};
        lk_codec_print(&rule->other[i].codec, side, codec, sizeof codec);
        hash = lk_splitmix64(hash + lk_splitmix64_step + rule->other[i].heads);
        for (size_t c = 0; codec[c]; c++)
            hash = lk_splitmix64(hash + lk_splitmix64_step + (unsigned char)codec[c]);
    }
    return (uint32_t)hash | 1;
}

struct lk_saved_level lk_saved_level_of(const struct lk_kv *kv, int i) {
    const struct lk_level_rule *rule = &kv->rule[i];
    struct lk_saved_level saved = {.block_bytes = (int64_t)kv->level[i].block_bytes,
                                   .n_block = kv->level[i].n_block,
                                   .rows = kv->count[i].rows,
                                   .skip = kv->count[i].skip,
                                   .block_rows = rule->block_rows,
                                   .batch = rule->batch,
                                   .keep = rule->keep,
                                   .percent = rule->percent,
                                   .rule_hash = hash_rule(rule, kv->side)};
    lk_codec_print(&rule->codec, kv->side, saved.codec, sizeof saved.codec);
    return saved;
}

/* ---- reading ---- */

/* What is left to read of a section. */
struct reader {
    const char *at;
    uint64_t left;
};

/* The next n bytes, which may be unaligned. NULL if fewer are left. */
static const void *read_bytes(struct reader *from, uint64_t n) {
    if (from->left < n) return NULL;
    const char *here = from->at;
    from->at += n;
    from->left -= n;
    return here;
}

/* Copy the next n bytes; false if fewer are left. */
static bool copy_bytes(void *to, struct reader *from, uint64_t n) {
    const void *here = read_bytes(from, n);
    if (here && n) memcpy(to, here, n);
    return here != NULL;
}

/* The counts of K or V of one layer. */
struct saved_side {
    struct lk_saved_kv kv;
    struct lk_saved_level level[LK_MAX_KV_LEVEL]; /* [n_level of the cache] */
};

static const char *const is_truncated = "its counts are truncated",
                         *const is_inconsistent = "its counts are inconsistent",
                         *const is_other = "its cache was saved with another recipe or for a "
                                           "model of another shape";

/* Read counts. Returns NULL or the reason for rejecting them. */
static const char *read_side(const struct lk_kv *kv, struct reader *counts,
                             struct saved_side *out) {
    if (!copy_bytes(&out->kv, counts, sizeof out->kv)) return is_truncated;
    if (out->kv.n_level != kv->n_level) return is_other;
    return copy_bytes(out->level, counts, kv->n_level * sizeof *out->level) ? NULL : is_truncated;
}

/* ---- checking ---- */

static bool same_level(const struct lk_saved_level *a, const struct lk_saved_level *b) {
    return memcmp(a->codec, b->codec, sizeof a->codec) == 0 && a->block_bytes == b->block_bytes &&
           a->block_rows == b->block_rows && a->batch == b->batch && a->keep == b->keep &&
           a->percent == b->percent && a->rule_hash == b->rule_hash;
}

bool lk_cache_same_levels(const struct lk_cache *a, const struct lk_cache *b) {
    if (a->shape.n_layer != b->shape.n_layer) return false;
    for (int k = 0; k < lk_cache_n_kv(a); k++) {
        const struct lk_kv *x = lk_cache_kv(a, k), *y = lk_cache_kv(b, k);
        if (x->n_level != y->n_level) return false;
        for (int i = 0; i < x->n_level; i++) {
            struct lk_saved_level one = lk_saved_level_of(x, i), other = lk_saved_level_of(y, i);
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
    bool row_wise = lk_codec_row_wise(&rule->codec, kv->side);
    for (int j = 0; j < rule->n_other; j++)
        row_wise &= lk_codec_row_wise(&rule->other[j].codec, kv->side);
    if (!row_wise && (saved->skip + saved->rows) % rule->block_rows != 0) return false;
    if (rule->codec.sigma && saved->rows > 0 && !(calibrated >> (kv->level[i].basis != NULL) & 1))
        return false;
    int64_t n_sink = i == 0 ? lk_level_sinks(kv->rule, kv->n_level) : 0;
    return n_sink == 0 || (saved->skip == 0 && saved->rows == (n_tok < n_sink ? n_tok : n_sink));
}

/* Check the counts of K or V of one layer. Returns NULL or the reason for rejecting them. */
static const char *check_counts(const struct lk_kv *kv, const struct saved_side *saved,
                                int64_t n_tok) {
    const struct lk_saved_kv *all = &saved->kv;
    if (all->shift[0] || all->shift[1])
        return "a context shift has dropped tokens, which only the tag papers-2026-11 continues";
    if (all->first < 0 || all->first > n_tok || all->n_tok != n_tok) return is_inconsistent;
    if (kv->n_swa == 0 && !can_evict(kv) && all->first > 0) return is_inconsistent;
    if (all->calibrated < 0 || all->calibrated > 3) return is_inconsistent;
    int64_t rows = 0;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_saved_level own = lk_saved_level_of(kv, i);
        if (!same_level(&saved->level[i], &own)) return is_other;
        if (!is_possible(kv, i, &saved->level[i], n_tok, all->calibrated)) return is_inconsistent;
        rows += saved->level[i].rows;
    }
    return rows == all->n_tok - all->first ? NULL : is_inconsistent;
}

/* Are all of x [n] finite, and positive or at least not negative? */
static bool are_numbers(const char *x, size_t n, bool positive) {
    for (size_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, x + i * sizeof value, sizeof value);
        if (!isfinite(value) || (positive ? value <= 0 : value < 0)) return false;
    }
    return true;
}

/* Do n_block blocks follow, as a part of a level of n_later blocks? */
static bool check_level_part(struct reader *rows, int64_t n_block, int64_t n_later,
                             size_t block_bytes) {
    int64_t next = 0;
    for (int64_t b = 0; b < n_block; b++) {
        int32_t index;
        if (!copy_bytes(&index, rows, sizeof index)) return false;
        if (index == -1 ? !read_bytes(rows, block_bytes) : index < next || index >= n_later)
            return false;
        if (index >= 0) next = (int64_t)index + 1;
    }
    return true;
}

/* Check the rows of K or V of one layer, whose counts are possible. later: of a part, or NULL. */
static const char *check_rows(const struct lk_kv *kv, const struct saved_side *saved,
                              const struct saved_side *later, struct reader *rows) {
    static const char *const cut = "its number of rows does not match its counts",
                             *const invalid = "its channel statistics are invalid";
    for (int i = 0; i < 2; i++) {
        const struct lk_equalizer *e = &kv->equalizer[i];
        size_t bytes = lk_equalizer_array_bytes(e), n = bytes / sizeof(float);
        const char *sigma = e->sigma ? read_bytes(rows, bytes) : NULL,
                   *query_power = e->query_power ? read_bytes(rows, bytes) : NULL;
        if ((e->sigma && !sigma) || (e->query_power && !query_power)) return cut;
        if (sigma && (saved->kv.calibrated >> i & 1) && !are_numbers(sigma, n, true))
            return invalid;
        if (query_power && !are_numbers(query_power, n, false)) return invalid;
    }
    for (int i = 0; i < kv->n_level; i++) {
        int64_t n = saved->level[i].n_block;
        size_t bytes = kv->level[i].block_bytes;
        if (later ? !check_level_part(rows, n, later->level[i].n_block, bytes)
                  : !read_bytes(rows, (uint64_t)n * bytes))
            return cut;
    }
    return NULL;
}

/* Can a head hold these positions? pos: of the head's rows by index, n_head numbers apart. Sinks
 * and the rows newer than the level with the limit are in order; that level's rows are different
 * ones of those in between. seen: n_tok bits of scratch. */
static bool are_positions(const struct lk_kv *kv, const struct saved_side *saved, const char *pos,
                          int n_head, uint8_t *seen) {
    int64_t first = saved->kv.first, n_tok = saved->kv.n_tok, n_ordered = 0;
    int level = 0;
    while (kv->rule[level].limit.policy.kind == LK_POLICY_NONE)
        n_ordered += saved->level[level++].rows;
    int64_t end = n_ordered + saved->level[level].rows;
    memset(seen, 0, (size_t)(n_tok + 7) / 8);
    for (int64_t i = 0; i < n_tok - first; i++) {
        int32_t at;
        memcpy(&at, pos + (size_t)i * n_head * sizeof at, sizeof at);
        if (i < n_ordered || i >= end) {
            if (at != (i < n_ordered ? i : i + first)) return false;
            continue;
        }
        if (at < n_ordered || at >= end + first || (seen[at / 8] >> at % 8 & 1)) return false;
        seen[at / 8] |= (uint8_t)(1 << at % 8);
    }
    return true;
}

/* Check what a layer that evicts holds besides rows. */
static const char *check_evict(const struct lk_cache *cache, int layer,
                               const struct saved_side saved[2], struct reader *rows,
                               uint8_t *seen) {
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    const struct lk_evict *evict = &cache->evict[layer];
    for (int i = 0; i < k->n_level; i++) /* both hold the same tokens */
        if (saved[LK_K].level[i].rows != saved[LK_V].level[i].rows) return is_inconsistent;
    size_t n = (size_t)(saved[LK_K].kv.n_tok - saved[LK_K].kv.first) * evict->n_head;
    const char *pos = read_bytes(rows, n * sizeof *evict->pos),
               *score = evict->needs_scores ? read_bytes(rows, n * sizeof *evict->score) : NULL;
    if (!pos || (evict->needs_scores && !score)) return "its positions or scores are truncated";
    if (score && !are_numbers(score, n, false)) return "its scores are invalid";
    for (int head = 0; head < evict->n_head; head++)
        if (!are_positions(k, &saved[LK_K], pos + head * sizeof *evict->pos, evict->n_head, seen))
            return "its positions are impossible";
    return NULL;
}

lk_status lk_cache_check(const struct lk_cache *cache, const void *counts, size_t n_count,
                         const void *rows, size_t n_row, const void *later, int64_t n_tok,
                         int n_layer, lk_err *err) {
    struct reader count = {counts, n_count}, row = {rows, n_row}, after = {later, UINT64_MAX};
    const char *reason = NULL;
    size_t n_seen = (size_t)(n_tok + 7) / 8 + 1;
    uint8_t *seen = lk_alloc(cache->ledger, LK_FOR_OTHER, n_seen);
    if (!seen) return lk_fail(err, LK_E_NOMEM, "no memory to check a cache");
    for (int layer = 0; !reason && layer < cache->shape.n_layer; layer++) {
        struct saved_side saved[2], next;
        for (int side = 0; !reason && side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            reason = read_side(kv, &count, &saved[side]);
            if (!reason) reason = check_counts(kv, &saved[side], layer < n_layer ? n_tok : 0);
            if (!reason && later) reason = read_side(kv, &after, &next);
            if (!reason) reason = check_rows(kv, &saved[side], later ? &next : NULL, &row);
        }
        if (!reason && cache->kv[layer][LK_K].evict)
            reason = check_evict(cache, layer, saved, &row, seen);
    }
    lk_release(cache->ledger, LK_FOR_OTHER, seen, n_seen);
    if (!reason && (count.left || row.left)) reason = "it holds more than its counts say";
    return reason ? lk_fail(err, LK_E_FORMAT, "%s", reason) : LK_OK;
}
