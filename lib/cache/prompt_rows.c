/* Whole prompts: memory, channel statistics and encoding of all rows at once. */
#include "cache/prompt_rows.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/project.h"

lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err) {
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        lk_level_advance(kv->rule, kv->count, kv->n_level, 0, n_tok, kv->n_swa, &kv->first, NULL);
        kv->n_tok = n_tok;
        if (!kv->evict || side != LK_K) continue;
        if (!lk_evict_reserve(&cache->evict[layer], cache->ledger, n_tok - kv->first))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        /* Provisional positions, until lk_evict_select. */
        lk_evict_append(&cache->evict[layer], n_tok - kv->first, kv->first);
    }
    return lk_cache_alloc_blocks(cache, layer, err);
}

/* Compute the statistics that a head's thread needs from the prompt's rows, for the parts that
 * start with this head. */
static void calibrate_prompt(struct lk_cache *cache, struct lk_kv *kv, int head,
                             const struct lk_kv *exact) {
    int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level), n = exact->n_tok - n_sink;
    if (n > LK_OBSERVE_ROWS) n = LK_OBSERVE_ROWS;
    struct lk_row_range range = {exact, 0, n_sink, n / LK_TILE * LK_TILE};
    size_t offset = (size_t)head * kv->d_head;
    bool done[2] = {false, false};
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level *level = &kv->level[i];
        bool latents = level->basis != NULL;
        if (done[latents] || !kv->rule[i].codec.sigma || !kv->count[i].rows || head % level->n_head)
            continue;
        lk_equalizer_calibrate(kv, i, head / level->n_head, &range, cache->kernels,
                               kv->rows + offset, (latents ? kv->latents : kv->rows) + offset,
                               lk_kv_width(kv));
        /* Only one thread writes this. No thread reads it before all heads are encoded. */
        if (head == 0) kv->equalizer[latents].calibrated = true;
        done[latents] = true;
    }
}

/* Encode the prompt's rows of one level, for the part that starts with this head. */
static void encode_level(struct lk_cache *cache, struct lk_kv *kv, int i, int head,
                         const struct lk_kv *exact) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_kernels *kernels = cache->kernels;
    int part = head / level->n_head;
    struct lk_part p = lk_kv_part(kv, i, part);
    size_t stride = lk_kv_width(kv), offset = (size_t)head * kv->d_head;
    /* Scratch that no other thread uses: the columns of this head, or of its group. */
    float *rows = kv->rows + offset, *x = level->basis ? kv->latents + offset : rows;
    bool selected = kv->rule[i].limit.policy.kind != LK_POLICY_NONE;
    for (int64_t at = 0; at < kv->count[i].rows;) {
        int row;
        int64_t n;
        char *block = (char *)lk_kv_locate(kv, i, at, &row, &n) + lk_level_part_offset(level, part);
        /* Rows that have already left the first block were encoded together with it. */
        int64_t n_left = at == 0 && p.block_rows <= LK_MAX_MOVE ? row : 0;
        if (n_left + n > LK_MAX_MOVE) n = LK_MAX_MOVE - n_left;
        if (selected) {
            for (int64_t r = 0; r < n; r++) {
                struct lk_row_range one = {exact, 0, lk_kv_position(kv, i, at + r, head), 1};
                lk_project_read(&one, level, part, p.d_head, kernels, rows + r * stride,
                                x + r * stride, stride);
            }
        } else {
            int64_t pos = lk_kv_position(kv, i, at, head);
            struct lk_row_range range = {exact, 0, pos - n_left, n_left + n};
            lk_project_read(&range, level, part, p.d_head, kernels, rows, x, stride);
        }
        kernels->encode(&p, block, row - (int)n_left, (int)(n_left + n), x, stride);
        at += n;
    }
}

void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact) {
    struct lk_kv *kv = &cache->kv[layer][side];
    calibrate_prompt(cache, kv, head, exact);
    for (int i = 0; i < kv->n_level; i++)
        if (head % kv->level[i].n_head == 0) encode_level(cache, kv, i, head, exact);
}
