/* Which rows of a layer are held here. */
#include "cache/held.h"

#include "cache/kv.h"

_Static_assert(LK_STRIPE % LK_MAX_MOVE == 0 && LK_STRIPE % LK_MAX_KERNEL_CHUNK == 0,
               "a stripe has whole blocks and whole chunks");

static int64_t count_sinks(const struct lk_kv *kv) { return lk_level_sinks(kv->rule, kv->n_level); }

/* Is the level the sinks? */
static bool is_sinks(const struct lk_kv *kv, int level) {
    return level == 0 && count_sinks(kv) > 0;
}

/* Own rows among the first `n` after the sinks. */
static int64_t own_before(const struct lk_kv *kv, int64_t n) {
    int64_t round = (int64_t)LK_STRIPE * kv->share.n,
            rest = n % round - (int64_t)LK_STRIPE * kv->share.own;
    if (rest < 0) rest = 0;
    if (rest > LK_STRIPE) rest = LK_STRIPE;
    return n / round * LK_STRIPE + rest;
}

int lk_held_share(const struct lk_kv *kv, int64_t index) {
    int64_t n_sink = count_sinks(kv);
    if (!lk_kv_is_divided(kv)) return kv->share.own;
    if (index < kv->first + n_sink) return 0;
    return (int)((index - n_sink) / LK_STRIPE % kv->share.n);
}

int64_t lk_held_end(const struct lk_kv *kv, int64_t index) {
    int64_t n_sink = count_sinks(kv);
    if (!lk_kv_is_divided(kv)) return INT64_MAX;
    if (index < kv->first + n_sink) return kv->first + n_sink;
    return n_sink + ((index - n_sink) / LK_STRIPE + 1) * LK_STRIPE;
}

int64_t lk_held_next(const struct lk_kv *kv, int64_t index) {
    while (lk_held_share(kv, index) != kv->share.own) index = lk_held_end(kv, index);
    return index;
}

int64_t lk_held_count(const struct lk_kv *kv, int64_t a, int64_t b) {
    int64_t n_sink = count_sinks(kv), body = kv->first + n_sink, n = 0;
    if (a >= b) return 0;
    if (!lk_kv_is_divided(kv)) return b - a;
    if (a < body) {
        n = kv->share.own == 0 ? (b < body ? b : body) - a : 0;
        a = body;
    }
    return a < b ? n + own_before(kv, b - n_sink) - own_before(kv, a - n_sink) : n;
}

int64_t lk_kv_level_first(const struct lk_kv *kv, int level) {
    int64_t first = kv->first;
    for (int i = 0; i < level; i++) first += kv->count[i].rows;
    return first;
}

int lk_held_block_share(const struct lk_kv *kv, int level, int64_t block) {
    int64_t first = lk_kv_level_first(kv, level),
            index = first - kv->count[level].skip + block * kv->rule[level].block_rows;
    return is_sinks(kv, level) ? 0 : lk_held_share(kv, index < first ? first : index);
}

int lk_held_holder(const struct lk_kv *kv, int level, int64_t block) {
    return kv->holder + lk_held_block_share(kv, level, block);
}

bool lk_held_has_row(const struct lk_kv *kv, int level, int64_t at) {
    if (kv->is_elsewhere) return false;
    if (!lk_kv_is_divided(kv) || kv->has_all_rows) return true;
    if (is_sinks(kv, level)) return kv->share.own == 0;
    return lk_held_share(kv, lk_kv_level_first(kv, level) + at) == kv->share.own;
}

bool lk_held_has_block(const struct lk_kv *kv, int level, int64_t block) {
    if (kv->is_elsewhere) return false;
    return !lk_kv_is_divided(kv) || kv->has_all_rows ||
           lk_held_block_share(kv, level, block) == kv->share.own;
}

int64_t lk_held_rows(const struct lk_kv *kv, int level) {
    int64_t first = lk_kv_level_first(kv, level), n = kv->count[level].rows;
    if (kv->is_elsewhere) return 0;
    return kv->has_all_rows ? n : lk_held_count(kv, first, first + n);
}

int64_t lk_held_blocks(const struct lk_kv *kv, int level) {
    int64_t n = 0, n_block = kv->level[level].n_block, block_rows = kv->rule[level].block_rows;
    if (kv->is_elsewhere) return 0;
    if (!lk_kv_is_divided(kv) || kv->has_all_rows) return n_block;
    if (is_sinks(kv, level)) return kv->share.own == 0 ? n_block : 0;
    if (n_block == 0) return 0;
    /* Rows of the first block that have left count too. Nothing but sinks lies before them. */
    n = lk_kv_level_first(kv, level) - kv->count[level].skip - count_sinks(kv);
    return (own_before(kv, n + n_block * block_rows) - own_before(kv, n)) / block_rows;
}

int64_t lk_held_max_blocks(const struct lk_kv *kv, int level, int64_t n_block) {
    int64_t stripe = LK_STRIPE / kv->rule[level].block_rows;
    if (kv->is_elsewhere) return 0;
    if (!lk_kv_is_divided(kv)) return n_block;
    if (is_sinks(kv, level)) return kv->share.own == 0 ? n_block : 0;
    int64_t round = stripe * kv->share.n, rest = n_block % round;
    return n_block / round * stripe + (rest < stripe ? rest : stripe);
}

/* With these counts, are there channel statistics that are still to be computed? */
static bool lacks_statistics(const struct lk_kv *kv, const struct lk_level_count *count) {
    bool missing[2] = {false, false}; /* of rows, of latents */
    for (int i = 0; i < kv->n_level; i++) {
        bool latents = kv->level[i].basis != NULL;
        if (kv->rule[i].codec.sigma && !kv->equalizer[latents].calibrated) missing[latents] = true;
    }
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].codec.sigma && count[i].rows > 0)
            missing[kv->level[i].basis != NULL] = false;
    return missing[0] || missing[1];
}

bool lk_held_collects(const struct lk_kv *kv, const struct lk_level_count *count) {
    return !kv->is_elsewhere && lacks_statistics(kv, count);
}

bool lk_held_by_all(const struct lk_kv *kv) { return lacks_statistics(kv, kv->count); }
