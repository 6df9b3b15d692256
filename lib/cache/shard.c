/* Which rows of a layer this process holds. */
#include "cache/shard.h"

#include "cache/kv.h"

_Static_assert(LK_STRIPE % LK_MAX_MOVE == 0 && LK_STRIPE % LK_MAX_KERNEL_CHUNK == 0,
               "a stripe has whole blocks and whole chunks");

static bool is_divided(const struct lk_kv *kv) { return kv->shard.n_rank > 1; }

static int64_t count_sinks(const struct lk_kv *kv) { return lk_level_sinks(kv->rule, kv->n_level); }

/* Is the level the sinks? */
static bool is_sinks(const struct lk_kv *kv, int level) {
    return level == 0 && count_sinks(kv) > 0;
}

/* Own rows among the first `n` after the sinks. */
static int64_t own_before(const struct lk_kv *kv, int64_t n) {
    int64_t round = (int64_t)LK_STRIPE * kv->shard.n_rank,
            rest = n % round - (int64_t)LK_STRIPE * kv->shard.rank;
    if (rest < 0) rest = 0;
    if (rest > LK_STRIPE) rest = LK_STRIPE;
    return n / round * LK_STRIPE + rest;
}

int lk_shard_owner(const struct lk_kv *kv, int64_t index) {
    int64_t n_sink = count_sinks(kv);
    if (!is_divided(kv)) return kv->shard.rank;
    if (index < kv->first + n_sink) return 0;
    return (int)((index - n_sink) / LK_STRIPE % kv->shard.n_rank);
}

int64_t lk_shard_end(const struct lk_kv *kv, int64_t index) {
    int64_t n_sink = count_sinks(kv);
    if (!is_divided(kv)) return INT64_MAX;
    if (index < kv->first + n_sink) return kv->first + n_sink;
    return n_sink + ((index - n_sink) / LK_STRIPE + 1) * LK_STRIPE;
}

int64_t lk_shard_next(const struct lk_kv *kv, int64_t index) {
    while (lk_shard_owner(kv, index) != kv->shard.rank) index = lk_shard_end(kv, index);
    return index;
}

int64_t lk_shard_count(const struct lk_kv *kv, int64_t a, int64_t b) {
    int64_t n_sink = count_sinks(kv), body = kv->first + n_sink, n = 0;
    if (a >= b) return 0;
    if (!is_divided(kv)) return b - a;
    if (a < body) {
        n = kv->shard.rank == 0 ? (b < body ? b : body) - a : 0;
        a = body;
    }
    return a < b ? n + own_before(kv, b - n_sink) - own_before(kv, a - n_sink) : n;
}

int64_t lk_shard_level_first(const struct lk_kv *kv, int level) {
    int64_t first = kv->first;
    for (int i = 0; i < level; i++) first += kv->count[i].rows;
    return first;
}

int lk_shard_block_owner(const struct lk_kv *kv, int level, int64_t block) {
    int64_t first = lk_shard_level_first(kv, level),
            index = first - kv->count[level].skip + block * kv->rule[level].block_rows;
    return is_sinks(kv, level) ? 0 : lk_shard_owner(kv, index < first ? first : index);
}

bool lk_shard_holds(const struct lk_kv *kv, int level, int64_t at) {
    if (kv->on_other_stage) return false;
    if (!is_divided(kv) || kv->holds_all_rows) return true;
    if (is_sinks(kv, level)) return kv->shard.rank == 0;
    return lk_shard_owner(kv, lk_shard_level_first(kv, level) + at) == kv->shard.rank;
}

bool lk_shard_holds_block(const struct lk_kv *kv, int level, int64_t block) {
    if (kv->on_other_stage) return false;
    return !is_divided(kv) || kv->holds_all_rows ||
           lk_shard_block_owner(kv, level, block) == kv->shard.rank;
}

int64_t lk_shard_held_rows(const struct lk_kv *kv, int level) {
    int64_t first = lk_shard_level_first(kv, level), n = kv->count[level].rows;
    if (kv->on_other_stage) return 0;
    return kv->holds_all_rows ? n : lk_shard_count(kv, first, first + n);
}

int64_t lk_shard_held_blocks(const struct lk_kv *kv, int level) {
    int64_t n = 0, n_block = kv->level[level].n_block, block_rows = kv->rule[level].block_rows;
    if (kv->on_other_stage) return 0;
    if (!is_divided(kv) || kv->holds_all_rows) return n_block;
    if (is_sinks(kv, level)) return kv->shard.rank == 0 ? n_block : 0;
    if (n_block == 0) return 0;
    /* Rows of the first block that have left count too. Nothing but sinks lies before them. */
    n = lk_shard_level_first(kv, level) - kv->count[level].skip - count_sinks(kv);
    return (own_before(kv, n + n_block * block_rows) - own_before(kv, n)) / block_rows;
}

int64_t lk_shard_max_blocks(const struct lk_kv *kv, int level, int64_t n_block) {
    int64_t stripe = LK_STRIPE / kv->rule[level].block_rows;
    if (kv->on_other_stage) return 0;
    if (!is_divided(kv)) return n_block;
    if (is_sinks(kv, level)) return kv->shard.rank == 0 ? n_block : 0;
    int64_t round = stripe * kv->shard.n_rank, rest = n_block % round;
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

bool lk_shard_collects(const struct lk_kv *kv, const struct lk_level_count *count) {
    return !kv->on_other_stage && lacks_statistics(kv, count);
}

bool lk_shard_all_hold(const struct lk_kv *kv) { return lacks_statistics(kv, kv->count); }
