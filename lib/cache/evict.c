#include "cache/calibrate.h"
#include "cache/move.h"

#include <string.h>

static bool has_room(struct lk_evict *evict, struct lk_ledger *ledger, void **array, int64_t *cap,
                     int64_t n) {
    if (n <= *cap) return true;
    int64_t more = n + n / 8 + LK_TILE;
    size_t row = evict->n_head * sizeof(int32_t); /* a float is as large */
    if (!lk_grow(ledger, LK_FOR_CACHE, array, *cap * row, more * row)) return false;
    *cap = more;
    return true;
}

bool lk_evict_reserve(struct lk_evict *evict, struct lk_ledger *ledger, int64_t n) {
    return has_room(evict, ledger, (void **)&evict->pos, &evict->cap_pos, n) &&
           (!evict->needs_scores ||
            has_room(evict, ledger, (void **)&evict->score, &evict->cap_score, n));
}

void lk_evict_append(struct lk_evict *evict, int64_t n, int64_t pos) {
    for (int64_t i = evict->n; i < evict->n + n; i++, pos++)
        for (int h = 0; h < evict->n_head; h++) evict->pos[i * evict->n_head + h] = (int32_t)pos;
    if (evict->needs_scores)
        memset(evict->score + evict->n * evict->n_head, 0,
               n * evict->n_head * sizeof *evict->score);
    evict->n += n;
}

size_t lk_evict_bytes(const struct lk_evict *evict, int64_t n) {
    return (size_t)n * evict->n_head *
           (sizeof *evict->pos + (evict->needs_scores ? sizeof *evict->score : 0));
}

void lk_evict_copy(struct lk_evict *to, const struct lk_evict *from) {
    size_t n = from->n * from->n_head;
    to->n = from->n;
    if (n == 0) return;
    memcpy(to->pos, from->pos, n * sizeof *to->pos);
    if (from->needs_scores) memcpy(to->score, from->score, n * sizeof *to->score);
}

void lk_evict_free(struct lk_evict *evict, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_CACHE, evict->pos,
               evict->cap_pos * evict->n_head * sizeof *evict->pos);
    lk_release(ledger, LK_FOR_CACHE, evict->score,
               evict->cap_score * evict->n_head * sizeof *evict->score);
    evict->pos = NULL;
    evict->score = NULL;
    evict->n = evict->cap_pos = evict->cap_score = 0;
}

/* ---- rows that come to a full level ---- */

/* A batch of n rows, read into the streams' scratch, on its way to level `to`, which has taken the first
 * `stay` of them; `base` is the index of the level's first row. */
struct coming {
    struct lk_cache *cache;
    int layer, to;
    int64_t base, stay, n;
};

/* A head's part of the block of a slot, to write to; NULL without memory. */
static void *slot_of(const struct coming *c, enum lk_side side, int head, int64_t slot, int *row) {
    struct lk_kv *kv = &c->cache->kv[c->layer][side];
    int block_rows = kv->rule[c->to].block_rows;
    slot += kv->fill[c->to].skip;
    *row = (int)(slot % block_rows);
    char *block = lk_cache_writable_block(c->cache, &kv->level[c->to], slot / block_rows);
    return block ? block + head * kv->level[c->to].head_bytes : NULL;
}

static const float *sigma_of(const struct coming *c, enum lk_side side, int head) {
    const struct lk_kv *kv = &c->cache->kv[c->layer][side];
    return lk_sigma_of(kv, c->to, head);
}

static void tell(const struct coming *c, int head, int64_t slot) {
    float x[2][LK_MAX_D_HEAD];
    int d = c->cache->shape.d_head;
    for (int side = 0; side < 2; side++)
        lk_read_rows(&c->cache->kv[c->layer][side], c->to, slot, 1, head, c->cache->kernels,
                     x[side], d);
    c->cache->leave.row(c->cache->leave.user, c->layer, head, x[LK_K], x[LK_V]);
}

/* Row r of the batch, of one head, takes a slot; or it goes itself, where that is `last`. False without memory,
 * as place_all. */
static bool place(const struct coming *c, int64_t r, int head, int64_t slot, int64_t last) {
    struct lk_cache *cache = c->cache;
    struct lk_evict *evict = &cache->evict[c->layer];
    int n_head = evict->n_head, d = cache->shape.d_head;
    const float *x[2] = {cache->rows[LK_K] + (r * n_head + head) * d,
                         cache->rows[LK_V] + (r * n_head + head) * d};
    if (slot == last) {
        if (cache->leave.row) cache->leave.row(cache->leave.user, c->layer, head, x[LK_K], x[LK_V]);
        return true;
    }
    if (cache->leave.row) tell(c, head, slot);
    for (int side = 0; side < 2; side++) {
        const struct lk_level_rule *rule = &cache->kv[c->layer][side].rule[c->to];
        int row;
        void *part = slot_of(c, side, head, slot, &row);
        if (!part) return false;
        lk_codec_replace(&rule->codec, side, d, rule->block_rows, sigma_of(c, side, head), part,
                         row, x[side]);
    }
    int64_t to = (c->base + slot) * n_head + head, from = (c->base + last) * n_head + head;
    evict->pos[to] = evict->pos[from];
    if (evict->needs_scores) evict->score[to] = evict->score[from];
    return true;
}

static bool place_all(const struct coming *c) {
    struct lk_evict *evict = &c->cache->evict[c->layer];
    int n_head = evict->n_head;
    const struct lk_kv *kv = &c->cache->kv[c->layer][LK_K];
    int64_t kept = kv->fill[c->to].rows, slot = 0;
    struct lk_policy_rows known = {.score =
                                       evict->needs_scores ? evict->score + c->base * n_head : NULL,
                                   .pos = evict->pos + c->base * n_head,
                                   .n_head = n_head,
                                   .n_tok = kv->n_tok};
    for (int64_t r = c->stay; r < c->n; r++)
        for (int h = 0; h < n_head; h++) {
            int64_t last = kept + r - c->stay;
            if (h == 0 || !lk_policy_joint(&evict->policy))
                slot = lk_policy_argmin(&evict->policy, &known, kept, last, h);
            if (!place(c, r, h, slot, last)) return false;
        }
    int64_t gone = c->n - c->stay, at = c->base + c->cache->kv[c->layer][LK_K].fill[c->to].rows;
    size_t rest = (evict->n - at - gone) * n_head;
    memmove(evict->pos + at * n_head, evict->pos + (at + gone) * n_head, rest * sizeof *evict->pos);
    if (evict->needs_scores)
        memmove(evict->score + at * n_head, evict->score + (at + gone) * n_head,
                rest * sizeof *evict->score);
    evict->n -= gone;
    return true;
}

lk_status lk_evict_age(struct lk_cache *cache, int layer, lk_err *err) {
    struct lk_kv *k = &cache->kv[layer][LK_K], *v = &cache->kv[layer][LK_V];
    if (k->n_tok != v->n_tok) return LK_OK;
    int from, n;
    while (lk_level_next_move(k->rule, k->fill, k->n_level, k->n_tok, &from, &n)) {
        struct coming c = {.cache = cache, .layer = layer, .to = from - 1, .n = n};
        c.stay = lk_level_room(&k->rule[c.to], &k->fill[c.to], k->n_tok, n);
        for (int i = 0; i < c.to; i++) c.base += k->fill[i].rows;
        for (int side = 0; side < 2; side++) {
            struct lk_kv *kv = &cache->kv[layer][side];
            lk_move_calibrate(cache, kv, from);
            lk_move_read(cache, kv, from, n);
            if (!lk_move_put(cache, kv, c.to, kv->rows, c.stay))
                return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        }
        if (c.stay < n && !place_all(&c))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        for (int side = 0; side < 2; side++) {
            lk_move_drop(cache, &cache->kv[layer][side], from, n);
            cache->kv[layer][side].first += n - c.stay;
        }
    }
    return LK_OK;
}

/* ---- whole prompts ---- */

/* Tell of the prompt's rows [from, from + n) that are not among the n_kept of `order`, which are in order. */
static void tell_dropped(struct lk_cache *cache, int layer, int head,
                         const struct lk_kv *const exact[2], int64_t from, int64_t n,
                         const struct lk_ranked *order, int64_t n_kept) {
    float x[2][LK_MAX_D_HEAD];
    int d = cache->shape.d_head;
    for (int64_t pos = from; pos < from + n; pos++) {
        if (n_kept > 0 && order->row == pos) {
            order++;
            n_kept--;
            continue;
        }
        for (int side = 0; side < 2; side++)
            lk_read_rows(exact[side], 0, pos, 1, head, cache->kernels, x[side], d);
        cache->leave.row(cache->leave.user, layer, head, x[LK_K], x[LK_V]);
    }
}

void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_ranked *order) {
    struct lk_evict *evict = &cache->evict[layer];
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    int level = 0, n_head = evict->n_head;
    while (k->rule[level].limit.policy.keep == LK_POLICY_NONE) level++;
    int64_t sinks = level > 0 ? k->fill[0].rows : 0, kept = k->fill[level].rows;
    struct lk_policy_rows known = {.score = attn_scores, .n_head = n_head, .n_tok = k->n_tok};
    lk_policy_select(&evict->policy, &known, sinks, kept + k->first, kept, head, order);
    if (cache->leave.row)
        tell_dropped(cache, layer, head, exact, sinks, kept + k->first, order, kept);
    for (int64_t i = 0; i < evict->n; i++) {
        int64_t pos = i < sinks ? i : i < sinks + kept ? order[i - sinks].row : i + k->first;
        evict->pos[i * n_head + head] = (int32_t)pos;
        if (evict->needs_scores) evict->score[i * n_head + head] = attn_scores[pos * n_head + head];
    }
}
