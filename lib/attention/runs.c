/* Rows of a level in the kernels' layout. */
#include "attention/runs.h"

/* How many blocks further the ones to prefetch are. *n_block: blocks from there on. If the rows are
 * divided, they are in the same stripe or in the next one of the own share (cache/held.h). */
static int64_t blocks_ahead(const struct lk_run *run, int64_t *n_block) {
    const struct lk_kv *kv = run->kv;
    const struct lk_level *level = &kv->level[run->level];
    int block_rows = kv->rule[run->level].block_rows;
    int64_t ahead = run->chunk > block_rows ? run->chunk / block_rows : 1;
    if (lk_kv_is_divided(kv)) {
        int64_t first = lk_kv_level_first(kv, run->level) - kv->count[run->level].skip,
                at = first + run->block * block_rows, to = at + ahead * block_rows;
        if (to >= lk_held_end(kv, at)) to += (int64_t)(kv->share.n - 1) * LK_STRIPE;
        int64_t end = (lk_held_end(kv, to) - first) / block_rows;
        ahead = (to - first) / block_rows - run->block;
        *n_block = (end < level->n_block ? end : level->n_block) - run->block - ahead;
    } else {
        *n_block = level->n_block - run->block - ahead;
    }
    return ahead;
}

/* The addresses of the run's blocks, and of equally many to prefetch. */
static void find_addresses(struct lk_run *run) {
    const struct lk_kv *kv = run->kv;
    const lk_block *block = kv->level[run->level].block + run->block;
    int64_t n_left, ahead = blocks_ahead(run, &n_left);
    run->n_ahead = n_left < 0 ? 0 : n_left < run->n_block ? (int)n_left : run->n_block;
    for (int i = 0; i < run->n_block; i++) run->at[i] = lk_block_host(kv->arena, block[i]);
    for (int i = 0; i < run->n_ahead; i++)
        run->ahead[i] = lk_block_host(kv->arena, block[ahead + i]);
}

void lk_run_find(struct lk_run *run, int64_t at, int64_t end) {
    int64_t index = run->kv->count[run->level].skip + at, n = end - at;
    int block_rows = run->kv->rule[run->level].block_rows;
    run->tile_row = (int)(index % LK_TILE);
    index -= run->tile_row;
    if (n > run->max_rows) n = run->max_rows;
    if (run->tile_row && n > LK_TILE - run->tile_row) n = LK_TILE - run->tile_row;
    if (run->whole_tiles && n > LK_TILE) n -= n % LK_TILE;
    run->n = (int)n;
    /* Most blocks are one tile, and division by a constant is faster. */
    run->block = block_rows == LK_TILE ? index / LK_TILE : index / block_rows;
    run->row0 = (int)(index - run->block * block_rows);
    int rows = run->row0 + run->tile_row + run->n;
    run->n_block = block_rows == LK_TILE ? (rows + LK_TILE - 1) / LK_TILE
                                         : (rows + block_rows - 1) / block_rows;
    find_addresses(run);
}

struct lk_rows lk_run_rows(const struct lk_run *run, int part) {
    const struct lk_kv *kv = run->kv;
    const struct lk_level *level = &kv->level[run->level];
    struct lk_rows rows = {.codec = lk_level_codec(&kv->rule[run->level], part),
                           .sigma = lk_kv_sigma(kv, run->level, part),
                           .d_head = lk_level_part_channels(level, part),
                           .block_rows = kv->rule[run->level].block_rows};
    rows.block = run->at;
    rows.offset = lk_level_part_offset(level, part);
    rows.row0 = run->row0;
    rows.n = run->tile_row + run->n;
    /* Prefetch the whole blocks that lie a chunk further. */
    size_t first = lk_level_part_offset(level, run->first_part);
    /* If parts differ, pieces of their mean size. */
    size_t bytes =
        level->part ? (level->block_bytes / level->n_part + 63) / 64 * 64 : level->head_bytes;
    rows.prefetch = (struct lk_prefetch){.block = run->ahead,
                                         .n_block = run->n_ahead,
                                         .first = (part - run->first_part) * run->n_block,
                                         .n_piece = run->end_part - run->first_part,
                                         .offset = first,
                                         .bytes = bytes};
    return rows;
}
