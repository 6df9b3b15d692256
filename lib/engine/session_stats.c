/* Statistics of a session: token count and bytes by purpose. */
#include "engine/session_stats.h"

#include "cache/latent_levels.h"
#include "engine/model.h"
#include "engine/prefill_state.h"
#include "lowkey_serve.h"
#include "recipe/recipe_levels.h"

#include <stdio.h>
#include <string.h>

size_t lk_session_n_tok(const lk_session *s) { return s->n_tok; }

const int32_t *lk_session_tokens(const lk_session *s) { return s->tok; }

size_t lk_session_suspended(const lk_session *s, size_t *n_done) {
    if (n_done) *n_done = s->suspended ? lk_prefill_done(s->suspended) : 0;
    return s->suspended ? s->suspended->n_tok : 0;
}

uint64_t lk_session_immutable_bytes(const lk_session *s) {
    return lk_cache_immutable_bytes(s->cache);
}

/* What the recipe needs of the sidecar. */
static uint64_t sidecar_bytes(const lk_session *s) {
    uint64_t own, shared;
    lk_latent_levels_estimate(s->cache, &own, &shared);
    return own + lk_model_sidecar_bytes(s->model, s->recipe, shared);
}

/* What 'read N%' read, of all threads. */
static void count_tiles(const lk_session *s, lk_session_stats *stats) {
    for (int i = 0; s->read_count && i < s->model->n_thread; i++) {
        stats->tiles += (uint64_t)s->read_count[i].n_tile;
        stats->tiles_read += (uint64_t)s->read_count[i].n_tile_read;
    }
}

static uint64_t device_bytes(const struct lk_session *s) {
    const struct lk_ledger *ledger = &s->rows.ledger;
    return lk_ledger_bytes(ledger, LK_FOR_CACHE) + lk_ledger_bytes(ledger, LK_FOR_SCRATCH) +
           atomic_load(&ledger->borrowed);
}

/* The stats of this process. */
static lk_session_stats own_stats(const lk_session *s) {
    struct lk_cache_bytes b = lk_cache_count_bytes(s->cache);
    uint64_t there = lk_ledger_bytes(&s->rows.ledger, LK_FOR_CACHE),
             state = lk_recurrent_ram_bytes(s->model->net) + s->recurrent_there.now.size;
    if (!s->rows.device) b.padding += there; /* which includes all states then */
    if (s->absorb) state += lk_absorb_state_bytes(s->absorb);
    lk_session_stats stats = {.n_tok = s->n_tok,
                              .code_bytes = b.code,
                              .scale_bytes = b.scale,
                              .exact_bytes = b.exact,
                              .padding_bytes = b.padding - state,
                              .state_bytes = state,
                              .cache_bytes = b.code + b.scale + b.exact + b.padding,
                              .device_bytes = device_bytes(s),
                              .checkpoint_bytes = lk_checkpoints_bytes(s),
                              .shared_bytes = atomic_load(&s->ledger.borrowed) +
                                              atomic_load(&s->rows.ledger.borrowed) -
                                              s->cache->there_bytes,
                              .sidecar_bytes = sidecar_bytes(s),
                              .f16_bytes = lk_cache_f16_bytes(&s->cache->shape, s->n_tok),
                              .scratch_bytes = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH)};
    count_tiles(s, &stats);
    return stats;
}

static lk_status run_nothing(struct lk_op *op, lk_err *err) {
    (void)op, (void)err;
    return LK_OK;
}

lk_session_stats lk_session_sum_stats(const lk_session *s, int32_t part_of, uint64_t *part) {
    lk_session_stats stats = own_stats(s);
    uint64_t *const field[] = {&stats.cache_bytes,      &stats.code_bytes,    &stats.scale_bytes,
                               &stats.exact_bytes,      &stats.padding_bytes, &stats.state_bytes,
                               &stats.checkpoint_bytes, &stats.scratch_bytes};
    enum { N = sizeof field / sizeof *field };
    uint64_t sum[N];
    struct lk_op op = {.kind = LK_OP_STATS,
                       .run = run_nothing,
                       .session = (struct lk_session *)s, /* is only read */
                       .sum = sum,
                       .n_sum = N,
                       .part_of = part_of,
                       .part = stats.cache_bytes};
    for (int i = 0; i < N; i++) sum[i] = *field[i];
    lk_op_run(s->model, &op, NULL);
    for (int i = 0; i < N; i++) *field[i] = sum[i];
    *part = op.part;
    return stats;
}

/* Add what follows from the bytes. */
static lk_session_stats add_ratios(const lk_session *s, lk_session_stats stats) {
    if (s->n_tok == 0) return stats;
    stats.bits_per_value = 16.0 * stats.cache_bytes / stats.f16_bytes;
    stats.bytes_per_token = (double)stats.cache_bytes / s->n_tok;
    stats.bits_with_sidecar = 16.0 * (stats.cache_bytes + stats.sidecar_bytes) / stats.f16_bytes;
    return stats;
}

lk_session_stats lk_session_get_stats(const lk_session *s) {
    uint64_t part;
    return add_ratios(s, lk_session_sum_stats(s, -1, &part));
}

lk_session_stats lk_session_own_stats(const lk_session *s) { return add_ratios(s, own_stats(s)); }

/* Index of the level that was made from the recipe's level `spec`; -1 if there is none. */
static int find_level(const struct lk_kv *kv, int spec) {
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].spec == spec) return i;
    return -1;
}

/* The layer whose row counts and codecs are reported for a level: the first one that has the level.
 * A layer with full attention is preferred, then one that the recipe does not override. -1:
 * none. */
static int representative_layer(const struct lk_session *s, int spec) {
    const struct lk_cache_shape *shape = &s->cache->shape;
    int best = -1, max_rank = -1;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        if (find_level(&s->cache->kv[layer][LK_K], spec) < 0 &&
            find_level(&s->cache->kv[layer][LK_V], spec) < 0)
            continue;
        bool full = !shape->is_swa || !shape->is_swa[layer];
        int rank = 2 * full + (lk_recipe_last_override(s->recipe, layer, shape->n_layer) < 0);
        if (rank > max_rank) best = layer, max_rank = rank;
    }
    return best;
}

bool lk_session_get_level(const lk_session *s, size_t i, lk_level_stats *out) {
    const struct lk_recipe *recipe = s->recipe;
    if (i > (size_t)recipe->n_level) return false;
    lk_level_stats sum = {0};
    int reported = representative_layer(s, (int)i);
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &s->cache->kv[layer][side];
            int level = find_level(kv, (int)i);
            if (level < 0) continue;
            *(side == LK_K ? &sum.k_bytes : &sum.v_bytes) +=
                lk_held_blocks(kv, level) * kv->level[level].block_bytes;
            if (layer != reported) continue;
            *(side == LK_K ? &sum.k_rows : &sum.v_rows) = kv->count[level].rows;
            lk_codec_print(&kv->rule[level].codec, side, side == LK_K ? sum.k_codec : sum.v_codec,
                           sizeof sum.k_codec);
        }
    bool staging = i == (size_t)recipe->n_level; /* rows of a batch that is not complete */
    if (staging && reported < 0) return false;
    uint64_t bytes[] = {sum.k_bytes, sum.v_bytes};
    struct lk_op op = {.kind = LK_OP_LEVEL,
                       .run = run_nothing,
                       .session = (struct lk_session *)s, /* is only read */
                       .n = i,
                       .sum = bytes,
                       .n_sum = 2};
    lk_op_run(s->model, &op, NULL);
    sum.k_bytes = bytes[0];
    sum.v_bytes = bytes[1];
    snprintf(sum.name, sizeof sum.name, "%s", staging ? "newest" : recipe->level[i].name);
    *out = sum;
    return true;
}
