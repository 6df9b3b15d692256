/* Eviction: aging rows of a layer with a limit, and choosing the rows of a prompt. */
#include "cache/evict_rows.h"

#include "cache/cache.h"
#include "cache/move.h"

#include <string.h>

/* A batch of rows on its way to a level with a limit. */
struct batch {
    struct lk_cache *cache;
    int layer, to;     /* layer and level */
    int64_t base;      /* index of the level's first row */
    int64_t n, n_fit;  /* rows of the batch; how many of them fit without replacing others */
    const float *x[2]; /* [n][n_head_kv][d_head] decoded rows of K and of V */
};

/* Report a row that the level holds to the eviction hook. */
static void report_held_row(const struct batch *b, int head, int64_t at) {
    const struct lk_cache *cache = b->cache;
    float x[2][LK_MAX_D_HEAD];
    for (int side = 0; side < 2; side++) {
        struct lk_row_range row = {&cache->kv[b->layer][side], b->to, at, 1};
        lk_kv_read(&row, head, cache->kernels, x[side], cache->shape.d_head);
    }
    cache->evict_hook.on_evict(cache->evict_hook.user, b->layer, head, x[LK_K], x[LK_V]);
}

/* Evict row `victim` of the level, for one head, in favor of row r of the batch. Both are counted
 * from the level's first row, and `arrival` is where row r would be if the level had room. If the
 * policy chose row r itself, it is evicted at once. False without memory. */
static bool replace_row(const struct batch *b, int64_t r, int head, int64_t victim,
                        int64_t arrival) {
    struct lk_cache *cache = b->cache;
    const struct lk_evict_hook *hook = &cache->evict_hook;
    struct lk_evict *evict = &cache->evict[b->layer];
    int n_head = evict->n_head, d = cache->shape.d_head;
    size_t offset = (size_t)(r * n_head + head) * d;
    if (victim == arrival) {
        if (hook->on_evict)
            hook->on_evict(hook->user, b->layer, head, b->x[LK_K] + offset, b->x[LK_V] + offset);
        return true;
    }
    if (hook->on_evict) report_held_row(b, head, victim);
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[b->layer][side];
        struct lk_level *level = &kv->level[b->to];
        struct lk_part p = lk_kv_part(kv, b->to, head);
        int64_t index = kv->count[b->to].skip + victim;
        char *block = lk_cache_writable_block(cache, level, index / p.block_rows);
        if (!block) return false;
        lk_codec_replace(&p, block + head * level->head_bytes, (int)(index % p.block_rows),
                         b->x[side] + offset);
    }
    int64_t to = (b->base + victim) * n_head + head, from = (b->base + arrival) * n_head + head;
    evict->pos[to] = evict->pos[from];
    if (evict->needs_scores) evict->score[to] = evict->score[from];
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
                                  .n_tok = k->n_tok};
    for (int64_t r = b->n_fit; r < b->n; r++)
        for (int head = 0; head < n_head; head++) {
            int64_t arrival = n_held + r - b->n_fit;
            if (head == 0 || !lk_policy_is_per_layer(&evict->policy))
                victim = lk_policy_argmin(&evict->policy, &rows, n_held, arrival, head);
            if (!replace_row(b, r, head, victim, arrival)) return false;
        }

    /* Close the gap that the batch leaves in the state. */
    int64_t gap = b->base + n_held, n_gap = b->n - b->n_fit;
    size_t n_after = (evict->n - gap - n_gap) * n_head;
    memmove(evict->pos + gap * n_head, evict->pos + (gap + n_gap) * n_head,
            n_after * sizeof *evict->pos);
    if (evict->needs_scores)
        memmove(evict->score + gap * n_head, evict->score + (gap + n_gap) * n_head,
                n_after * sizeof *evict->score);
    evict->n -= n_gap;
    return true;
}

lk_status lk_evict_age(struct lk_cache *cache, int layer, lk_err *err) {
    struct lk_kv *k = &cache->kv[layer][LK_K], *v = &cache->kv[layer][LK_V];
    if (k->n_tok != v->n_tok) return LK_OK;
    int from, n;
    while (lk_level_next_move(k->rule, k->count, k->n_level, k->n_tok, &from, &n)) {
        struct batch b = {.cache = cache, .layer = layer, .to = from - 1, .n = n};
        b.n_fit = lk_level_room(&k->rule[b.to], &k->count[b.to], k->n_tok, n);
        for (int i = 0; i < b.to; i++) b.base += k->count[i].rows;
        bool ok = true;
        for (int side = 0; ok && side < 2; side++) {
            struct lk_kv *kv = &cache->kv[layer][side];
            lk_move_calibrate(cache, kv, from);
            b.x[side] = lk_move_read(cache, kv, from, n, b.to);
            ok = lk_move_append(cache, kv, b.to, b.x[side], b.n_fit);
        }
        if (ok && b.n_fit < n) ok = replace_rows(&b);
        if (!ok) return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        for (int side = 0; side < 2; side++) {
            lk_move_drop(cache, &cache->kv[layer][side], from, n);
            cache->kv[layer][side].first += n - b.n_fit;
        }
    }
    return LK_OK;
}

/* ---- whole prompts ---- */

/* Report to the hook the rows [from, from + n) that are not among the n_kept rows of `kept`, which
 * are sorted. */
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
                       x[side], cache->shape.d_head);
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
    struct lk_policy_rows rows = {.score = attn_scores, .n_head = n_head, .n_tok = k->n_tok};
    lk_policy_select(&evict->policy, &rows, n_sink, n_candidate, n_kept, head, order);
    if (cache->evict_hook.on_evict)
        report_dropped_rows(cache, layer, head, exact, n_sink, n_candidate, order, n_kept);
    for (int64_t i = 0; i < evict->n; i++) {
        int64_t pos = i < n_sink ? i : i < n_sink + n_kept ? order[i - n_sink].row : i + k->first;
        evict->pos[i * n_head + head] = (int32_t)pos;
        if (evict->needs_scores) evict->score[i * n_head + head] = attn_scores[pos * n_head + head];
    }
}
