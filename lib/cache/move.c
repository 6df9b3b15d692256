/* Rows between levels: calibrate, read, append, drop. */
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
    for (int part = 0; !kv->on_other_stage && part < kv->level[to].n_part; part++)
        lk_equalizer_calibrate(kv, to, part, &range, cache->kernels, kv->rows, kv->out,
                               lk_kv_width(kv));
    kv->equalizer[kv->level[to].basis != NULL].calibrated = true;
    if (kv->holds_all_rows && !lk_shard_collects(kv, kv->count)) lk_cache_divide(cache, kv);
}

int lk_move_rows(const struct lk_kv *kv, int from, int n) {
    int64_t index = lk_shard_level_first(kv, from);
    int64_t same = lk_shard_end(kv, index) - index;
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
        bool held = lk_shard_holds(kv, i, count->rows);
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
