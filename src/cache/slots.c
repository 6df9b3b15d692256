#include "cache/calibrate.h"
#include "cache/move.h"

#include <string.h>

static bool has_room(struct lk_slots *slots, struct lk_ledger *ledger, void **array, int64_t *cap, int64_t n) {
    if (n <= *cap) return true;
    int64_t more = n + n / 8 + LK_TILE;
    size_t row = slots->n_head * sizeof(int32_t); /* a float is as large */
    if (!lk_grow(ledger, LK_FOR_CACHE, array, *cap * row, more * row)) return false;
    *cap = more;
    return true;
}

bool lk_slots_room(struct lk_slots *slots, struct lk_ledger *ledger, int64_t n) {
    return has_room(slots, ledger, (void **)&slots->pos, &slots->cap_pos, n) &&
           (!slots->hears || has_room(slots, ledger, (void **)&slots->score, &slots->cap_score, n));
}

void lk_slots_append(struct lk_slots *slots, int64_t n, int64_t pos) {
    for (int64_t i = slots->n; i < slots->n + n; i++, pos++)
        for (int h = 0; h < slots->n_head; h++) slots->pos[i * slots->n_head + h] = (int32_t)pos;
    if (slots->hears) memset(slots->score + slots->n * slots->n_head, 0, n * slots->n_head * sizeof *slots->score);
    slots->n += n;
}

size_t lk_slots_bytes(const struct lk_slots *slots, int64_t n) {
    return (size_t)n * slots->n_head * (sizeof *slots->pos + (slots->hears ? sizeof *slots->score : 0));
}

void lk_slots_copy(struct lk_slots *to, const struct lk_slots *from) {
    size_t n = from->n * from->n_head;
    to->n = from->n;
    if (n == 0) return;
    memcpy(to->pos, from->pos, n * sizeof *to->pos);
    if (from->hears) memcpy(to->score, from->score, n * sizeof *to->score);
}

void lk_slots_release(struct lk_slots *slots, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_CACHE, slots->pos, slots->cap_pos * slots->n_head * sizeof *slots->pos);
    lk_release(ledger, LK_FOR_CACHE, slots->score, slots->cap_score * slots->n_head * sizeof *slots->score);
    slots->pos = NULL;
    slots->score = NULL;
    slots->n = slots->cap_pos = slots->cap_score = 0;
}

/* ---- rows that come to a full level ---------------------------------------------------------------- */

/* A batch of n rows, read into the streams' scratch, on its way to level `to`, which has taken the first
 * `stay` of them; `base` is the index of the level's first row. */
struct coming {
    struct lk_cache *cache;
    int              layer, to;
    int64_t          base, stay, n;
};

/* A head's part of the block of a slot, to write to; NULL without memory. */
static void *slot_of(const struct coming *c, enum lk_side side, int head, int64_t slot, int *row) {
    struct lk_stream *stream = &c->cache->stream[c->layer][side];
    int block_rows = stream->rule[c->to].block_rows;
    slot += stream->fill[c->to].skip;
    *row = (int)(slot % block_rows);
    char *block = lk_cache_own_block(c->cache, &stream->level[c->to], slot / block_rows);
    return block ? block + head * stream->level[c->to].head_bytes : NULL;
}

static const float *sigma_of(const struct coming *c, enum lk_side side, int head) {
    const struct lk_stream *stream = &c->cache->stream[c->layer][side];
    return lk_sigma_of(stream, c->to, head);
}

static void tell(const struct coming *c, int head, int64_t slot) {
    float x[2][LK_MAX_D_HEAD];
    int d = c->cache->shape.d_head;
    for (int side = 0; side < 2; side++)
        lk_read_rows(&c->cache->stream[c->layer][side], c->to, slot, 1, head, c->cache->kern, x[side], d);
    c->cache->leave.row(c->cache->leave.user, c->layer, head, x[LK_K], x[LK_V]);
}

/* Row r of the batch, of one head, takes a slot; or it goes itself, where that is `last`. False without memory,
 * as place_all. */
static bool place(const struct coming *c, int64_t r, int head, int64_t slot, int64_t last) {
    struct lk_cache *cache = c->cache;
    struct lk_slots *slots = &cache->slots[c->layer];
    int n_head = slots->n_head, d = cache->shape.d_head;
    const float *x[2] = {cache->rows[LK_K] + (r * n_head + head) * d, cache->rows[LK_V] + (r * n_head + head) * d};
    if (slot == last) {
        if (cache->leave.row) cache->leave.row(cache->leave.user, c->layer, head, x[LK_K], x[LK_V]);
        return true;
    }
    if (cache->leave.row) tell(c, head, slot);
    for (int side = 0; side < 2; side++) {
        const struct lk_level_rule *rule = &cache->stream[c->layer][side].rule[c->to];
        int row;
        void *part = slot_of(c, side, head, slot, &row);
        if (!part) return false;
        lk_codec_replace(&rule->codec, side, d, rule->block_rows, sigma_of(c, side, head), part, row, x[side]);
    }
    int64_t to = (c->base + slot) * n_head + head, from = (c->base + last) * n_head + head;
    slots->pos[to] = slots->pos[from];
    if (slots->hears) slots->score[to] = slots->score[from];
    return true;
}

static bool place_all(const struct coming *c) {
    struct lk_slots *slots = &c->cache->slots[c->layer];
    int n_head = slots->n_head;
    const struct lk_stream *stream = &c->cache->stream[c->layer][LK_K];
    int64_t kept = stream->fill[c->to].rows, slot = 0;
    struct lk_rows_known known = {.score = slots->hears ? slots->score + c->base * n_head : NULL,
                                  .pos = slots->pos + c->base * n_head, .n_head = n_head, .n_tok = stream->n_tok};
    for (int64_t r = c->stay; r < c->n; r++)
        for (int h = 0; h < n_head; h++) {
            int64_t last = kept + r - c->stay;
            if (h == 0 || !lk_policy_joint(&slots->policy)) slot = lk_policy_least(&slots->policy, &known, kept, last, h);
            if (!place(c, r, h, slot, last)) return false;
        }
    int64_t gone = c->n - c->stay, at = c->base + c->cache->stream[c->layer][LK_K].fill[c->to].rows;
    size_t rest = (slots->n - at - gone) * n_head;
    memmove(slots->pos + at * n_head, slots->pos + (at + gone) * n_head, rest * sizeof *slots->pos);
    if (slots->hears) memmove(slots->score + at * n_head, slots->score + (at + gone) * n_head, rest * sizeof *slots->score);
    slots->n -= gone;
    return true;
}

lk_status lk_slots_settle(struct lk_cache *cache, int layer, lk_err *err) {
    struct lk_stream *k = &cache->stream[layer][LK_K], *v = &cache->stream[layer][LK_V];
    if (k->n_tok != v->n_tok) return LK_OK;
    int from, n;
    while (lk_level_next_move(k->rule, k->fill, k->n_level, k->n_tok, &from, &n)) {
        struct coming c = {.cache = cache, .layer = layer, .to = from - 1, .n = n};
        c.stay = lk_level_room(&k->rule[c.to], &k->fill[c.to], k->n_tok, n);
        for (int i = 0; i < c.to; i++) c.base += k->fill[i].rows;
        for (int side = 0; side < 2; side++) {
            struct lk_stream *stream = &cache->stream[layer][side];
            lk_move_calibrate(cache, stream, from);
            lk_move_read(cache, stream, from, n);
            if (!lk_move_put(cache, stream, c.to, stream->rows, c.stay))
                return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        }
        if (c.stay < n && !place_all(&c)) return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        for (int side = 0; side < 2; side++) {
            lk_move_drop(cache, &cache->stream[layer][side], from, n);
            cache->stream[layer][side].first += n - c.stay;
        }
    }
    return LK_OK;
}

/* ---- whole prompts --------------------------------------------------------------------------------- */

/* Tell of the prompt's rows [from, from + n) that are not among the n_kept of `order`, which are in order. */
static void tell_dropped(struct lk_cache *cache, int layer, int head, const struct lk_stream *const exact[2], int64_t from, int64_t n,
                         const struct lk_ranked *order, int64_t n_kept) {
    float x[2][LK_MAX_D_HEAD];
    int d = cache->shape.d_head;
    for (int64_t pos = from; pos < from + n; pos++) {
        if (n_kept > 0 && order->row == pos) {
            order++;
            n_kept--;
            continue;
        }
        for (int side = 0; side < 2; side++) lk_read_rows(exact[side], 0, pos, 1, head, cache->kern, x[side], d);
        cache->leave.row(cache->leave.user, layer, head, x[LK_K], x[LK_V]);
    }
}

void lk_slots_choose(struct lk_cache *cache, int layer, int head, const float *heard, const struct lk_stream *const exact[2],
                     struct lk_ranked *order) {
    struct lk_slots *slots = &cache->slots[layer];
    const struct lk_stream *k = &cache->stream[layer][LK_K];
    int level = 0, n_head = slots->n_head;
    while (k->rule[level].limit.policy.keep == LK_KEEP_ALL) level++;
    int64_t sinks = level > 0 ? k->fill[0].rows : 0, kept = k->fill[level].rows;
    struct lk_rows_known known = {.score = heard, .n_head = n_head, .n_tok = k->n_tok};
    lk_policy_choose(&slots->policy, &known, sinks, kept + k->first, kept, head, order);
    if (cache->leave.row) tell_dropped(cache, layer, head, exact, sinks, kept + k->first, order, kept);
    for (int64_t i = 0; i < slots->n; i++) {
        int64_t pos = i < sinks ? i : i < sinks + kept ? order[i - sinks].row : i + k->first;
        slots->pos[i * n_head + head] = (int32_t)pos;
        if (slots->hears) slots->score[i * n_head + head] = heard[pos * n_head + head];
    }
}
