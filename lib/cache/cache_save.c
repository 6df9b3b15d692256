/* Serialization of a cache: writing, checking, restoring. */
#include "cache/cache_save.h"

#include "base/splitmix64.h"
#include "cache/equalizer.h"
#include "cache/latent_levels.h"

#include <math.h>
#include <string.h>

/* Bytes of one array of channel statistics. */
static size_t statistics_bytes(const struct lk_equalizer *equalizer) {
    return (size_t)equalizer->n_part * equalizer->stride * sizeof(float);
}

/* Can a policy evict rows? */
static bool can_evict(const struct lk_kv *kv) {
    bool limited = false;
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
                                    .n_shifted = kv->n_shifted,
                                    .n_kept = kv->n_kept,
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

bool lk_saving_put(struct lk_saving *saving, int sender, const void *data, size_t n) {
    const lk_ranks *ranks = saving->ranks;
    bool writes = !ranks || ranks->rank == 0;
    if (!writes && sender != ranks->rank) return saving->ok;
    for (size_t at = 0, now; at < n; at += now) {
        bool receives = writes && sender > 0;
        const void *piece = receives ? saving->room : (const char *)data + at;
        now = sender > 0 && n - at > LK_SAVE_ROOM ? LK_SAVE_ROOM : n - at;
        if (!writes) {
            saving->ok = ranks->send(ranks->user, 0, piece, now) && saving->ok;
            continue;
        }
        if (receives) /* the sender does not know whether this rank can still write */
            saving->ok = ranks->receive(ranks->user, sender, saving->room, now) && saving->ok;
        saving->ok = saving->ok && saving->writer->put(saving->writer->user, piece, now);
    }
    return saving->ok;
}

static void write_statistics(struct lk_saving *saving, const struct lk_kv *kv, int sender) {
    for (int i = 0; i < 2; i++) {
        const struct lk_equalizer *e = &kv->equalizer[i];
        size_t n = statistics_bytes(e);
        if (e->sigma) lk_saving_put(saving, sender, e->sigma, n);
        if (e->query_power) lk_saving_put(saving, sender, e->query_power, n);
    }
}

/* Positions and scores of a layer that evicts. */
static void write_evict(struct lk_saving *saving, const struct lk_kv *k, int sender,
                        const struct lk_evict *evict) {
    size_t n = (size_t)(k->n_tok - k->first) * evict->n_head;
    lk_saving_put(saving, sender, evict->pos, n * sizeof *evict->pos);
    if (evict->needs_scores) lk_saving_put(saving, sender, evict->score, n * sizeof *evict->score);
}

bool lk_cache_write_rows(const struct lk_cache *cache, struct lk_saving *saving) {
    const lk_ranks *ranks = saving->ranks;
    int n_stage = cache->shape.n_stage > 1 ? cache->shape.n_stage : 1;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        int first = ranks ? kv->stage * (ranks->n_rank / n_stage) : 0; /* of the layer's stage */
        write_statistics(saving, kv, first);
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; b < kv->level[i].n_block; b++)
                lk_saving_put(saving, first + lk_shard_block_owner(kv, i, b), kv->level[i].block[b],
                              kv->level[i].block_bytes);
        if (kv->side == LK_V && kv->evict)
            write_evict(saving, &cache->kv[k / 2][LK_K], first, &cache->evict[k / 2]);
    }
    return saving->ok;
}

/* The blocks of a level that `later` does not hold, and the indices of the others. */
static void write_level_part(const struct lk_level *level, const struct lk_level *later,
                             struct lk_saving *saving) {
    int64_t next = 0;
    for (int64_t b = 0; saving->ok && b < level->n_block; b++) {
        int64_t same = next;
        while (same < later->n_block && later->block[same] != level->block[b]) same++;
        bool shared = same < later->n_block;
        if (shared) next = same + 1;
        int32_t index = shared ? (int32_t)same : -1;
        lk_saving_put(saving, 0, &index, sizeof index);
        if (!shared) lk_saving_put(saving, 0, level->block[b], level->block_bytes);
    }
}

bool lk_cache_write_part(const struct lk_cache *cache, const struct lk_cache *later,
                         const struct lk_writer *writer) {
    struct lk_saving saving = {.writer = writer, .ok = true};
    for (int k = 0; saving.ok && k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k), *other = lk_cache_kv(later, k);
        write_statistics(&saving, kv, 0);
        for (int i = 0; i < kv->n_level; i++)
            write_level_part(&kv->level[i], &other->level[i], &saving);
        if (kv->side == LK_V && kv->evict)
            write_evict(&saving, &cache->kv[k / 2][LK_K], 0, &cache->evict[k / 2]);
    }
    return saving.ok;
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

/* Can shifts and evictions leave these counts of a layer's K or V? */
static bool is_shift(const struct lk_kv *kv, const struct lk_saved_kv *saved, int64_t n_tok) {
    int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level), n_kept = saved->n_kept;
    bool full = kv->n_swa == 0 && !can_evict(kv);
    if (saved->n_shifted < 0 || saved->n_shifted > LK_SHIFT_POSITIONS) return false;
    if (saved->first < saved->n_shifted || saved->first > saved->n_tok) return false;
    if (saved->n_tok != n_tok + saved->n_shifted) return false;
    if (full && saved->first > saved->n_shifted) return false;
    if (saved->n_shifted > 0 && can_evict(kv)) return false;
    if (saved->n_shifted == 0 || !full) return n_kept == 0;
    return n_kept >= (n_sink < n_tok ? n_sink : n_tok) && n_kept <= n_tok;
}

/* Check the counts of K or V of one layer. n_shifted: of all layers. Returns NULL or the reason for
 * rejecting them. */
static const char *check_counts(const struct lk_kv *kv, const struct saved_side *saved,
                                int64_t n_tok, int64_t n_shifted) {
    const struct lk_saved_kv *all = &saved->kv;
    if (all->n_shifted != n_shifted || !is_shift(kv, all, n_tok)) return is_inconsistent;
    if (all->calibrated < 0 || all->calibrated > 3) return is_inconsistent;
    int64_t rows = 0;
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_saved_level own = describe_level(kv, i);
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
        size_t bytes = statistics_bytes(e), n = bytes / sizeof(float);
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
                         lk_err *err) {
    struct reader count = {counts, n_count}, row = {rows, n_row}, after = {later, UINT64_MAX};
    const char *reason = NULL;
    int64_t n_shifted = 0;
    size_t n_seen = (size_t)(n_tok + 7) / 8 + 1;
    uint8_t *seen = lk_alloc(cache->ledger, LK_FOR_OTHER, n_seen);
    if (!seen) return lk_fail(err, LK_E_NOMEM, "no memory to check a cache");
    for (int layer = 0; !reason && layer < cache->shape.n_layer; layer++) {
        struct saved_side saved[2], next;
        for (int side = 0; !reason && side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[layer][side];
            reason = read_side(kv, &count, &saved[side]);
            if (layer == 0 && side == 0) n_shifted = saved[side].kv.n_shifted;
            if (!reason) reason = check_counts(kv, &saved[side], n_tok, n_shifted);
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

/* ---- restoring ---- */

static void restore_counts(struct lk_kv *kv, struct reader *counts) {
    struct saved_side saved;
    read_side(kv, counts, &saved);
    kv->first = saved.kv.first;
    kv->n_tok = saved.kv.n_tok;
    kv->n_shifted = saved.kv.n_shifted;
    kv->n_kept = saved.kv.n_kept;
    for (int i = 0; i < 2; i++) kv->equalizer[i].calibrated = saved.kv.calibrated >> i & 1;
    for (int i = 0; i < kv->n_level; i++)
        kv->count[i] = (struct lk_level_count){saved.level[i].rows, saved.level[i].skip};
    kv->whole = lk_shard_collects(kv, kv->count);
}

lk_status lk_cache_restore_counts(struct lk_cache *cache, const void *counts, lk_err *err) {
    struct reader count = {counts, UINT64_MAX}; /* its size is known to fit */
    lk_cache_clear(cache);
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_kv *k = &cache->kv[layer][LK_K];
        for (int side = 0; side < 2; side++) restore_counts(&cache->kv[layer][side], &count);
        lk_status status = lk_cache_alloc_blocks(cache, layer, err);
        if (status == LK_OK && k->evict && !k->elsewhere &&
            !lk_evict_reserve(&cache->evict[layer], cache->ledger, k->n_tok - k->first))
            status = lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        if (status != LK_OK) {
            lk_cache_clear(cache);
            return status;
        }
    }
    return LK_OK;
}

/* The rows on their way to this rank, piece by piece. */
struct row_stream {
    const lk_ranks *ranks; /* NULL: all of them are there */
    struct reader rows;    /* what rank 0 has not broadcast yet; on other ranks only `left` */
    struct reader piece;
    void *room;
    bool lost;
};

/* Get the next piece of the stream. */
static void next_piece(struct row_stream *stream) {
    struct reader *rows = &stream->rows;
    uint64_t n = rows->left < LK_RESTORE_ROOM ? rows->left : LK_RESTORE_ROOM;
    bool sends = stream->ranks->rank == 0;
    void *data = sends ? (void *)read_bytes(rows, n) : stream->room; /* a broadcast reads it */
    if (!sends) rows->left -= n;
    stream->lost = n == 0 || !stream->ranks->broadcast(stream->ranks->user, 0, data, n);
    stream->piece = (struct reader){data, n};
}

/* Copy the next n bytes to `to`, or leave them out if it is NULL. */
static void take_bytes(struct row_stream *stream, void *to, uint64_t n) {
    for (char *at = to; n > 0 && !stream->lost;) {
        if (stream->piece.left == 0) next_piece(stream);
        uint64_t now = n < stream->piece.left ? n : stream->piece.left;
        const void *from = stream->lost ? NULL : read_bytes(&stream->piece, now);
        if (from && at) memcpy(at, from, now);
        if (at) at += now;
        n -= now;
    }
}

static void restore_statistics(struct lk_kv *kv, struct row_stream *rows) {
    for (int i = 0; i < 2; i++) {
        struct lk_equalizer *e = &kv->equalizer[i];
        if (e->sigma) take_bytes(rows, e->sigma, statistics_bytes(e));
        if (e->query_power) take_bytes(rows, e->query_power, statistics_bytes(e));
    }
    lk_latent_levels_restore(kv);
}

static void restore_rows(struct lk_kv *kv, struct row_stream *rows) {
    restore_statistics(kv, rows);
    for (int i = 0; i < kv->n_level; i++)
        for (int64_t b = 0; b < kv->level[i].n_block; b++)
            take_bytes(rows, kv->level[i].block[b], kv->level[i].block_bytes);
}

/* Positions and scores of the n rows that a layer holds; room was reserved if this process holds
 * the layer. */
static void restore_evict(struct lk_evict *evict, bool held, int64_t n, struct row_stream *rows) {
    evict->n = held ? n : 0;
    take_bytes(rows, held ? evict->pos : NULL, (size_t)n * evict->n_head * sizeof *evict->pos);
    if (evict->needs_scores)
        take_bytes(rows, held ? evict->score : NULL,
                   (size_t)n * evict->n_head * sizeof *evict->score);
}

bool lk_cache_restore_rows(struct lk_cache *cache, const void *rows, uint64_t n_row,
                           const lk_ranks *ranks, void *room) {
    struct row_stream stream = {.ranks = ranks, .rows = {rows, n_row}, .room = room};
    if (!ranks) stream.piece = stream.rows;
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_kv *k = &cache->kv[layer][LK_K];
        for (int side = 0; side < 2; side++) restore_rows(&cache->kv[layer][side], &stream);
        if (k->evict)
            restore_evict(&cache->evict[layer], !k->elsewhere, k->n_tok - k->first, &stream);
    }
    lk_cache_trim(cache);
    return !stream.lost;
}

/* Replace the blocks of a level, which are those of the later state, by n_block blocks of a part.
 * False without memory. */
static bool restore_level_part(struct lk_cache *cache, struct lk_level *level, int64_t n_block,
                               struct row_stream *rows) {
    struct lk_level later = *level;
    int64_t next = 0; /* of the later blocks */
    level->block = NULL;
    level->n_block = level->cap = 0;
    bool ok = lk_cache_grow_table(cache, level, n_block);
    while (ok && level->n_block < n_block) {
        int32_t same = -1;
        take_bytes(rows, &same, sizeof same);
        if (same < 0) {
            ok = lk_cache_add_block(cache, level, true);
            if (ok) take_bytes(rows, level->block[level->n_block - 1], level->block_bytes);
            continue;
        }
        for (; next < same; next++)
            lk_pool_free(&cache->pool, later.block_bytes, later.block[next]);
        level->block[level->n_block++] = later.block[next++];
    }
    for (; next < later.n_block; next++)
        lk_pool_free(&cache->pool, later.block_bytes, later.block[next]);
    lk_release(cache->ledger, LK_FOR_CACHE, later.block, later.cap * sizeof *later.block);
    return ok;
}

bool lk_cache_restore_part(struct lk_cache *cache, struct lk_cache *later, const void *counts,
                           const void *rows, uint64_t n_row) {
    struct reader count = {counts, UINT64_MAX}; /* its size is known to fit */
    struct row_stream stream = {.piece = {rows, n_row}};
    bool ok = lk_cache_copy(cache, later, NULL) == LK_OK;
    for (int k = 0; ok && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        struct lk_evict *evict = &cache->evict[k / 2];
        restore_counts(kv, &count);
        restore_statistics(kv, &stream);
        for (int i = 0; ok && i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            ok = restore_level_part(cache, level, lk_level_blocks(&kv->rule[i], &kv->count[i]),
                                    &stream);
        }
        if (!ok || kv->side != LK_V || !kv->evict) continue;
        ok = lk_evict_reserve(evict, cache->ledger, kv->n_tok - kv->first);
        if (ok) restore_evict(evict, true, kv->n_tok - kv->first, &stream);
    }
    if (ok) lk_cache_trim(cache);
    if (!ok) lk_cache_clear(cache);
    return ok;
}
