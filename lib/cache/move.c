/* Rows between levels: calibrate, read, append, drop; eviction. */
#include "cache/move.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/project.h"

#include <string.h>

size_t lk_move_offset(const struct lk_kv *kv, const struct lk_level *level, int part) {
    return (size_t)part * level->n_head * kv->d_head;
}

void lk_move_calibrate(struct lk_cache *cache, struct lk_kv *kv, int from) {
    int to = from - 1;
    if (!kv->rule[to].codec.sigma || lk_kv_equalizer(kv, to)->calibrated) return;
    struct lk_row_range range = {kv, from, 0, kv->count[from].rows / LK_TILE * LK_TILE};
    for (int part = 0; !kv->is_elsewhere && part < kv->level[to].n_part; part++)
        lk_equalizer_calibrate(kv, to, part, &range, cache->kernels, kv->rows, kv->out,
                               lk_kv_width(kv));
    kv->equalizer[kv->level[to].basis != NULL].calibrated = true;
    if (kv->has_all_rows && !lk_held_collects(kv, kv->count)) lk_cache_divide(cache, kv);
}

int lk_move_rows(const struct lk_kv *kv, int from, int n) {
    int64_t index = lk_kv_level_first(kv, from);
    int64_t same = lk_held_end(kv, index) - index;
    return same < n ? (int)same : n;
}

const float *lk_move_read(const struct lk_cache *cache, const struct lk_kv *kv, int from, int64_t n,
                          int to) {
    const struct lk_level *level = &kv->level[to];
    struct lk_row_range range = {kv, from, 0, n};
    for (int part = 0; part < level->n_part; part++)
        lk_rows_read_for(&range, level, part, lk_level_part_channels(level, part), cache->kernels,
                         kv->rows, kv->out + lk_move_offset(kv, level, part), lk_kv_width(kv));
    return kv->out;
}

bool lk_move_append(struct lk_cache *cache, struct lk_kv *kv, int i, const float *x, int64_t n) {
    struct lk_level *level = &kv->level[i];
    struct lk_level_count *count = &kv->count[i];
    size_t width = lk_kv_width(kv);
    int block_rows = kv->rule[i].block_rows;
    while (n > 0) {
        int64_t index = count->skip + count->rows;
        bool held = lk_held_has_row(kv, i, count->rows);
        if (index / block_rows >= level->n_block && !lk_cache_add_block(cache, level, held))
            return false;
        int row = (int)(index % block_rows);
        int64_t n_now = block_rows - row < n ? block_rows - row : n;
        char *block = held ? lk_cache_writable_block(cache, level, level->n_block - 1) : NULL;
        if (held && !block) return false;
        for (int part = 0; held && part < level->n_part; part++) {
            struct lk_part p = lk_kv_part(kv, i, part);
            cache->kernels->encode(&p, block + lk_level_part_offset(level, part), row, (int)n_now,
                                   x + lk_move_offset(kv, level, part), width);
        }
        count->rows += n_now;
        if (x) x += n_now * width;
        n -= n_now;
    }
    return true;
}

void lk_move_drop(struct lk_cache *cache, struct lk_kv *kv, int i, int64_t n) {
    struct lk_level *level = &kv->level[i];
    int64_t n_empty = (kv->count[i].skip + n) / kv->rule[i].block_rows;
    if (n == kv->count[i].rows) n_empty = level->n_block;
    lk_level_remove(&kv->rule[i], &kv->count[i], n);
    for (int64_t b = 0; b < n_empty; b++) lk_pool_free(&cache->pool, level->block[b]);
    level->n_block -= n_empty;
    memmove(level->block, level->block + n_empty, level->n_block * sizeof *level->block);
}

/* ---- eviction: aging rows of a layer with a limit, and choosing the rows of a prompt ---- */

/* A batch of rows on its way to a level with a limit. Its first rows, which fit, have already
 * moved. The others are still the oldest rows of the newer level. */
struct batch {
    struct lk_cache *cache;
    int layer, to;     /* layer and level */
    int64_t base;      /* index of the level's first row */
    int64_t n_left;    /* rows that do not fit without replacing others */
    const float *x[2]; /* [n_left][n_head_kv][d_head] K and V as the level stores them */
};

/* Report row `at` of a level to the eviction hook, for the heads of a unit. */
static void report_row(const struct batch *b, int level, int64_t at, int first_head) {
    const struct lk_cache *cache = b->cache;
    const struct lk_evict_hook *hook = &cache->evict_hook;
    float x[2][LK_MAX_D_HEAD];
    for (int i = 0; hook->on_evict && i < cache->evict[b->layer].unit; i++) {
        int head = first_head + i;
        for (int side = 0; side < 2; side++)
            lk_project_read_head(&cache->kv[b->layer][side], level, at, head,
                                 cache->kv[b->layer][side].d_head, cache->kernels, x[side]);
        hook->on_evict(hook->user, b->layer, head, x[LK_K], x[LK_V]);
    }
}

/* Encode row r of the batch in place of row `victim` of the level, in the parts of a unit. False
 * without memory. */
static bool replace_parts(const struct batch *b, enum lk_side side, int64_t r, int first_head,
                          int64_t victim) {
    struct lk_cache *cache = b->cache;
    struct lk_kv *kv = &cache->kv[b->layer][side];
    struct lk_level *level = &kv->level[b->to];
    int64_t index = kv->count[b->to].skip + victim;
    int block_rows = kv->rule[b->to].block_rows, unit = cache->evict[b->layer].unit;
    char *block = lk_cache_writable_block(cache, level, index / block_rows);
    if (!block) return false;
    const float *row = b->x[side] + r * lk_kv_width(kv);
    for (int head = first_head; head < first_head + unit; head += level->n_head) {
        int part = head / level->n_head;
        struct lk_part p = lk_kv_part(kv, b->to, part);
        lk_codec_replace(&p, block + lk_level_part_offset(level, part), (int)(index % block_rows),
                         row + lk_move_offset(kv, level, part));
    }
    return true;
}

/* Evict row `victim` of the level, for one unit, in favor of row r of the batch. Both are counted
 * from the level's first row, and `arrival` is where row r would be if the level had room. If the
 * policy chose row r itself, it is evicted at once. False without memory. */
static bool replace_row(const struct batch *b, int64_t r, int first_head, int64_t victim,
                        int64_t arrival) {
    struct lk_evict *evict = &b->cache->evict[b->layer];
    if (victim == arrival) {
        report_row(b, b->to + 1, r, first_head);
        return true;
    }
    report_row(b, b->to, victim, first_head);
    for (int side = 0; side < 2; side++)
        if (!replace_parts(b, side, r, first_head, victim)) return false;
    size_t n_head = evict->n_head, to = (b->base + victim) * n_head + first_head,
           from = (b->base + arrival) * n_head + first_head;
    memcpy(evict->pos + to, evict->pos + from, evict->unit * sizeof *evict->pos);
    if (evict->needs_scores)
        memcpy(evict->score + to, evict->score + from, evict->unit * sizeof *evict->score);
    return true;
}

/* Let the rows of the batch that do not fit compete with the rows that the full level holds. */
static bool replace_rows(const struct batch *b) {
    struct lk_evict *evict = &b->cache->evict[b->layer];
    const struct lk_kv *k = &b->cache->kv[b->layer][LK_K];
    int n_head = evict->n_head;
    int64_t n_held = k->count[b->to].rows, victim = 0;
    struct lk_policy_rows rows = {.score =
                                      evict->needs_scores ? evict->score + b->base * n_head : NULL,
                                  .pos = evict->pos + b->base * n_head,
                                  .n_head = n_head,
                                  .unit = evict->unit,
                                  .n_tok = k->n_tok};
    for (int64_t r = 0; r < b->n_left; r++)
        for (int head = 0; head < n_head; head += evict->unit) {
            int64_t arrival = n_held + r;
            if (head == 0 || !lk_policy_is_per_layer(&evict->policy))
                victim = lk_policy_argmin(&evict->policy, &rows, n_held, arrival, head);
            if (!replace_row(b, r, head, victim, arrival)) return false;
        }

    /* Close the gap that the batch leaves in the state. */
    int64_t gap = b->base + n_held;
    size_t n_after = (evict->n - gap - b->n_left) * n_head;
    memmove(evict->pos + gap * n_head, evict->pos + (gap + b->n_left) * n_head,
            n_after * sizeof *evict->pos);
    if (evict->needs_scores)
        memmove(evict->score + gap * n_head, evict->score + (gap + b->n_left) * n_head,
                n_after * sizeof *evict->score);
    evict->n -= b->n_left;
    return true;
}

/* Move n rows of level `from` to the next older level, or evict them. False without memory. */
static bool move_batch(struct lk_cache *cache, int layer, int from, int64_t n) {
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    struct batch b = {.cache = cache, .layer = layer, .to = from - 1};
    int64_t n_fit = lk_level_room(&k->rule[b.to], &k->count[b.to], k->n_tok, n);
    bool holds_none = lk_limit_is_zero(&k->rule[b.to].limit); /* nothing is encoded */
    for (int i = 0; i < b.to; i++) b.base += k->count[i].rows;
    b.n_left = n - n_fit;
    for (int side = 0; !holds_none && side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        lk_move_calibrate(cache, kv, from);
        const float *x = k->is_elsewhere ? NULL : lk_move_read(cache, kv, from, n, b.to);
        if (!lk_move_append(cache, kv, b.to, x, n_fit)) return false;
        lk_move_drop(cache, kv, from, n_fit);
        b.x[side] = x ? x + n_fit * lk_kv_width(kv) : NULL;
    }
    if (b.n_left && !k->is_elsewhere && !replace_rows(&b)) return false;
    for (int side = 0; side < 2; side++) {
        lk_move_drop(cache, &cache->kv[layer][side], from, b.n_left);
        cache->kv[layer][side].first += b.n_left;
    }
    return true;
}

lk_status lk_evict_age(struct lk_cache *cache, int layer, lk_err *err) {
    struct lk_kv *k = &cache->kv[layer][LK_K], *v = &cache->kv[layer][LK_V];
    if (k->n_tok != v->n_tok) return LK_OK;
    int from, n;
    while (lk_level_next_move(k->rule, k->count, k->n_level, k->n_tok, &from, &n))
        if (!move_batch(cache, layer, from, n))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
    return LK_OK;
}

/* ---- whole prompts ---- */

/* Report to the hook the rows [from, from + n) of a head that are not among the n_kept rows of
 * `kept`, which are sorted. */
static void report_dropped_rows(const struct lk_cache *cache, int layer, int head,
                                const struct lk_kv *const exact[2], int64_t from, int64_t n,
                                const struct lk_scored_row *kept, int64_t n_kept) {
    float x[2][LK_MAX_D_HEAD];
    for (int64_t pos = from, i = 0; pos < from + n; pos++) {
        if (i < n_kept && kept[i].row == pos) {
            i++;
            continue;
        }
        for (int side = 0; side < 2; side++)
            lk_kv_read(&(struct lk_row_range){exact[side], 0, pos, 1}, head, cache->kernels,
                       x[side], exact[side]->d_head);
        cache->evict_hook.on_evict(cache->evict_hook.user, layer, head, x[LK_K], x[LK_V]);
    }
}

void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_scored_row *order) {
    struct lk_evict *evict = &cache->evict[layer];
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    int level = 0, n_head = evict->n_head;
    while (k->rule[level].limit.policy.kind == LK_POLICY_NONE) level++;
    int64_t n_sink = level > 0 ? k->count[0].rows : 0, n_kept = k->count[level].rows,
            n_candidate = n_kept + k->first;
    if (head % evict->unit) return;
    struct lk_policy_rows rows = {
        .score = attn_scores, .n_head = n_head, .unit = evict->unit, .n_tok = k->n_tok};
    lk_policy_select(&evict->policy, &rows, n_sink, n_candidate, n_kept, head, order);
    for (int h = head; cache->evict_hook.on_evict && h < head + evict->unit; h++)
        report_dropped_rows(cache, layer, h, exact, n_sink, n_candidate, order, n_kept);
    for (int64_t i = 0; i < evict->n; i++) {
        int64_t pos = i < n_sink ? i : i < n_sink + n_kept ? order[i - n_sink].row : i + k->first;
        for (int h = head; h < head + evict->unit; h++) {
            evict->pos[i * n_head + h] = (int32_t)pos;
            if (evict->needs_scores) evict->score[i * n_head + h] = attn_scores[pos * n_head + h];
        }
    }
}
