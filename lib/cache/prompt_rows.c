/* Whole prompts: memory, channel statistics and encoding of all rows at once. */
#include "cache/prompt_rows.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/project.h"

#include <string.h>

/* The processes that hold the layer compute the statistics of a prompt's levels. */
static void count_statistics(struct lk_kv *kv) {
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].codec.sigma && kv->count[i].rows > 0)
            kv->equalizer[kv->level[i].basis != NULL].calibrated = true;
}

lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err) {
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        lk_level_advance(kv->rule, kv->count, kv->n_level, 0, n_tok, kv->n_swa, &kv->first, NULL);
        kv->n_tok = n_tok;
        kv->has_all_rows = lk_held_collects(kv, kv->count);
        if (kv->is_elsewhere) count_statistics(kv);
        if (!kv->evict || side != LK_K || kv->is_elsewhere) continue;
        if (!lk_evict_reserve(&cache->evict[layer], cache->ledger, n_tok - kv->first))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
        /* Provisional positions, until lk_evict_select. */
        lk_evict_append(&cache->evict[layer], n_tok - kv->first, kv->first);
    }
    for (int side = 0; side < 2; side++)
        if (!lk_cache_reserve_staging(cache, side, LK_MAX_MOVE))
            return lk_fail(err, LK_E_NOMEM, "no device memory for a prompt's rows");
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
                               kv->rows + offset, (latents ? kv->out : kv->rows) + offset,
                               lk_kv_width(kv));
        /* Only one thread writes this. No thread reads it before all heads are encoded. */
        if (head == 0) kv->equalizer[latents].calibrated = true;
        done[latents] = true;
    }
}

/* Encode the prompt's rows [from, end) of one level, for the part that starts with this head. into:
 * the only block that they are in, or NULL: the level's blocks. */
static void encode_rows(const struct lk_cache *cache, struct lk_kv *kv, int i, int head,
                        int64_t from, int64_t end, const struct lk_kv *exact, char *into) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_kernels *kernels = cache->kernels;
    int part = head / level->n_head;
    struct lk_part p = lk_kv_part(kv, i, part);
    size_t stride = lk_kv_width(kv), offset = (size_t)head * kv->d_head;
    /* Scratch that no other thread uses: the columns of this head, or of its group. */
    float *rows = kv->rows + offset, *x = level->basis ? kv->out + offset : rows;
    bool selected = kv->rule[i].limit.policy.kind != LK_POLICY_NONE;
    for (int64_t at = from; at < end;) {
        int row;
        int64_t n;
        char *block = lk_kv_locate(kv, i, at, &row, &n);
        if (!block) { /* not held here */
            at += n;
            continue;
        }
        block = (into ? into : block) + lk_level_part_offset(level, part);
        /* Rows that have already left the first block were encoded together with it. */
        int64_t n_left = at == 0 && p.block_rows <= LK_MAX_MOVE ? row : 0;
        if (n_left + n > LK_MAX_MOVE) n = LK_MAX_MOVE - n_left;
        if (selected) {
            for (int64_t r = 0; r < n; r++) {
                struct lk_row_range one = {exact, 0, lk_kv_position(kv, i, at + r, head), 1};
                lk_rows_read_for(&one, level, part, p.d_head, kernels, rows + r * stride,
                                 x + r * stride, stride);
            }
        } else {
            int64_t pos = lk_kv_position(kv, i, at, head);
            struct lk_row_range range = {exact, 0, pos - n_left, n_left + n};
            lk_rows_read_for(&range, level, part, p.d_head, kernels, rows, x, stride);
        }
        kernels->encode(&p, block, row - (int)n_left, (int)(n_left + n), x, stride);
        at += n;
    }
}

/* ---- on a device: rows are encoded there, or here if a policy chose them head by head ---- */

static void upload_level(struct lk_cache *cache, struct lk_kv *kv, int i, int64_t from,
                         const struct lk_kv *exact) {
    struct lk_device *device = cache->shape.device;
    size_t size = kv->level[i].block_bytes;
    for (int64_t at = from, n; at < kv->count[i].rows; at += n) {
        int row;
        uint64_t block = (uint64_t)(uintptr_t)lk_kv_locate(kv, i, at, &row, &n);
        memset(kv->copy, 0, size);
        for (int head = 0; head < kv->n_head; head += kv->level[i].n_head)
            encode_rows(cache, kv, i, head, at, at + n, exact, kv->copy);
        lk_arena_note(kv->arena, device->call->upload(device, block, kv->copy, size, NULL));
    }
}

/* Rows of all heads from position `pos` on, as a list's moves read them. */
static const float *rows_there(struct lk_cache *cache, const struct lk_kv *kv, int64_t pos,
                               int64_t n, struct lk_rows_there rows, const struct lk_kv *exact) {
    size_t width = lk_kv_width(kv);
    if (rows.at)
        return (const float *)(uintptr_t)(rows.at + (uint64_t)pos * rows.stride * sizeof(uint16_t));
    for (int head = 0; head < kv->n_head; head++)
        lk_kv_read(&(struct lk_row_range){exact, 0, pos, n}, head, cache->kernels,
                   kv->rows + (size_t)head * kv->d_head, width);
    return lk_cache_upload_rows(cache, kv->side, kv->rows, n, width);
}

static void move_level(struct lk_cache *cache, struct lk_kv *kv, int i, int64_t from,
                       struct lk_rows_there rows, const struct lk_kv *exact) {
    struct lk_short_list room;
    struct lk_moves *list = lk_moves_start(&room, cache, kv->rows);
    int block_rows = kv->rule[i].block_rows;
    for (int64_t at = from, n; at < kv->count[i].rows; at += n) {
        int row;
        lk_kv_locate(kv, i, at, &row, &n);
        int n_left = at == 0 && block_rows <= LK_MAX_MOVE ? row : 0; /* as in encode_rows */
        if (n_left + n > LK_MAX_MOVE) n = LK_MAX_MOVE - n_left;
        int64_t pos = lk_kv_position(kv, i, at, 0) - n_left;
        struct lk_move m = {.kv = kv,
                            .x = rows_there(cache, kv, pos, n_left + n, rows, exact),
                            .half_stride = rows.at ? rows.stride : 0,
                            .to = i,
                            .n = n_left + (int)n,
                            .end_part = kv->level[i].n_part,
                            .to_row = row - n_left,
                            .to_block = {kv->level[i].block[(kv->count[i].skip + at) / block_rows]},
                            .pos = pos};
        lk_moves_add(list, &m);
        if (!rows.at) lk_moves_run(list); /* the next rows take the place of these there */
    }
    lk_moves_run(list);
}

/* Encode the prompt's rows of one level from its row `from` on, for the part that starts with this
 * head; on a device, for all parts with head 0. */
static void encode_level(struct lk_cache *cache, struct lk_kv *kv, int i, int head, int64_t from,
                         struct lk_rows_there rows, const struct lk_kv *exact) {
    if (!kv->arena->device)
        encode_rows(cache, kv, i, head, from, kv->count[i].rows, exact, NULL);
    else if (kv->rule[i].limit.policy.kind != LK_POLICY_NONE)
        upload_level(cache, kv, i, from, exact);
    else
        move_level(cache, kv, i, from, rows, exact);
}

void lk_cache_encode_calibrated(struct lk_cache *cache, int layer, enum lk_side side, int head,
                                const struct lk_kv *exact) {
    struct lk_kv *kv = &cache->kv[layer][side];
    if (kv->arena->device && head > 0) return; /* with the first one */
    for (int i = 0; i < kv->n_level; i++)
        if (head % kv->level[i].n_head == 0)
            encode_level(cache, kv, i, head, 0, (struct lk_rows_there){0}, exact);
}

void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact) {
    struct lk_kv *kv = &cache->kv[layer][side];
    bool on_device = kv->arena->device;
    if (on_device && head > 0) return; /* with the first one */
    for (int h = head; h < (on_device ? kv->n_head : head + 1); h++)
        calibrate_prompt(cache, kv, h, exact);
    lk_cache_encode_calibrated(cache, layer, side, head, exact);
}

int64_t lk_cache_needs_first(const struct lk_cache *cache, int layer, enum lk_side side,
                             int64_t n_tok) {
    const struct lk_kv *kv = &cache->kv[layer][side];
    int64_t n = lk_level_sinks(kv->rule, kv->n_level) + LK_OBSERVE_ROWS;
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].codec.sigma && kv->count[i].rows > 0) return n < n_tok ? n : n_tok;
    return 0;
}

void lk_cache_encode_there(struct lk_cache *cache, int layer, enum lk_side side,
                           struct lk_rows_there rows, const struct lk_kv *first) {
    struct lk_kv *kv = &cache->kv[layer][side];
    for (int head = 0; first && head < kv->n_head; head++) calibrate_prompt(cache, kv, head, first);
    for (int i = 0; i < kv->n_level; i++) encode_level(cache, kv, i, 0, 0, rows, NULL);
}

/* ---- the first rows of a prompt ---- */

/* Blocks at the front of a level that are full and hold the same rows in both. */
static int64_t count_equal_blocks(const struct lk_kv *part, const struct lk_kv *whole, int i) {
    int64_t first_part = part->first, first_whole = whole->first;
    for (int j = 0; j < i; j++) {
        first_part += part->count[j].rows;
        first_whole += whole->count[j].rows;
    }
    if (first_part != first_whole || part->count[i].skip || whole->count[i].skip) return 0;
    int64_t a = part->count[i].rows, b = whole->count[i].rows;
    return (a < b ? a : b) / part->rule[i].block_rows;
}

bool lk_cache_alloc_part(struct lk_cache *part, const struct lk_cache *whole, int layer,
                         int64_t n_tok) {
    for (int side = 0; side < 2; side++) {
        struct lk_kv *kv = &part->kv[layer][side];
        lk_level_advance(kv->rule, kv->count, kv->n_level, 0, n_tok, kv->n_swa, &kv->first, NULL);
        kv->n_tok = n_tok;
        kv->has_all_rows = whole->kv[layer][side].has_all_rows; /* it gets the same statistics */
        for (int i = 0; i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            int64_t n_block = lk_level_blocks(&kv->rule[i], &kv->count[i]),
                    n_equal = count_equal_blocks(kv, &whole->kv[layer][side], i);
            if (!lk_cache_grow_table(part, level, n_block)) return false;
            while (level->n_block < n_equal) level->block[level->n_block++] = 0;
            while (level->n_block < n_block)
                if (!lk_cache_add_block(part, level, lk_held_has_block(kv, i, level->n_block)))
                    return false;
            /* As in lk_cache_alloc_blocks. */
            if (kv->count[i].skip && level->block[0]) lk_cache_clear_block(part, level, 0);
        }
    }
    return true;
}

void lk_cache_encode_part(struct lk_cache *part, struct lk_cache *whole, int layer,
                          enum lk_side side, int head, struct lk_rows_there rows,
                          const struct lk_kv *exact) {
    const struct lk_kv *own = &part->kv[layer][side];
    if (own->arena->device && head > 0) return;
    struct lk_kv kv = whole->kv[layer][side]; /* with its statistics, bases and scratch */
    int64_t n_equal[LK_MAX_KV_LEVEL] = {0};
    for (int i = 0; i < kv.n_level; i++) n_equal[i] = count_equal_blocks(own, &kv, i);
    kv.first = own->first;
    kv.n_tok = own->n_tok;
    kv.arena = own->arena;
    for (int i = 0; i < kv.n_level; i++) {
        kv.count[i] = own->count[i];
        kv.level[i].block = own->level[i].block;
        kv.level[i].n_block = own->level[i].n_block;
    }
    for (int i = 0; i < kv.n_level; i++)
        if (head % kv.level[i].n_head == 0)
            encode_level(whole, &kv, i, head, n_equal[i] * kv.rule[i].block_rows, rows, exact);
}

/* Replace the blocks of a level, which are those of the whole prompt, from block n_equal on. */
static bool join_level(struct lk_cache *to, struct lk_kv *kv, const struct lk_kv *part, int i,
                       int64_t n_equal) {
    struct lk_level *level = &kv->level[i];
    const struct lk_level *own = &part->level[i];
    while (level->n_block > n_equal) lk_pool_free(&to->pool, level->block[--level->n_block]);
    for (int64_t b = n_equal; b < own->n_block; b++) {
        if (!lk_cache_add_block(to, level, own->block[b] != 0)) return false;
        if (own->block[b])
            lk_block_copy(kv->arena, level->block[b], part->arena, own->block[b], own->block_bytes);
    }
    return true;
}

bool lk_cache_join_part(struct lk_cache *to, struct lk_cache *whole, const struct lk_cache *part) {
    bool ok = !lk_cache_copy(to, whole, NULL);
    for (int k = 0; ok && k < lk_cache_n_kv(to); k++) {
        struct lk_kv *kv = lk_cache_kv(to, k);
        const struct lk_kv *own = lk_cache_kv(part, k), *all = lk_cache_kv(whole, k);
        for (int i = 0; ok && i < kv->n_level; i++) {
            ok = join_level(to, kv, own, i, count_equal_blocks(own, all, i));
            kv->count[i] = own->count[i];
        }
        kv->first = own->first;
        kv->n_tok = own->n_tok;
    }
    if (ok) lk_cache_trim(to);
    if (!ok) lk_cache_clear(to);
    return ok;
}

void lk_cache_part_blocks(const struct lk_cache *part, int n_layer,
                          void (*visit)(void *user, void *block, size_t n), void *user) {
    for (int k = 0; k < 2 * n_layer; k++) {
        const struct lk_kv *kv = lk_cache_kv(part, k);
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; b < kv->level[i].n_block; b++)
                if (kv->level[i].block[b])
                    visit(user, lk_kv_block(kv, i, b), kv->level[i].block_bytes);
    }
}
