#include "attention/runs.h"

#include "attention/attention.h"

void lk_run_begin(struct lk_run *run, const struct lk_kv *kv, int level, int first_part,
                  int end_part) {
    run->kv = kv;
    run->level = level;
    run->first_part = first_part;
    run->end_part = end_part;
}

void lk_run_find(struct lk_run *run, int64_t at, int64_t end) {
    int64_t slot = run->kv->fill[run->level].skip + at, n = end - at;
    int block_rows = run->kv->rule[run->level].block_rows;
    run->inside = (int)(slot % LK_TILE);
    slot -= run->inside;
    if (n > run->most) n = run->most;
    if (run->inside && n > LK_TILE - run->inside) n = LK_TILE - run->inside;
    if (run->whole && n > LK_TILE) n -= n % LK_TILE;
    run->n = (int)n;
    run->block = block_rows == LK_TILE ? slot / LK_TILE : slot / block_rows;
    run->row0 = (int)(slot - run->block * block_rows);
    int rows = run->row0 + run->inside + run->n;
    run->n_block = block_rows == LK_TILE ? (rows + LK_TILE - 1) / LK_TILE
                                         : (rows + block_rows - 1) / block_rows;
}

struct lk_rows lk_run_rows(const struct lk_run *run, int part) {
    const struct lk_kv *kv = run->kv;
    const struct lk_level *level = &kv->level[run->level];
    struct lk_rows rows = {.codec = &kv->rule[run->level].codec,
                           .sigma = lk_sigma_of(kv, run->level, part),
                           .d_head = level->d_part,
                           .block_rows = kv->rule[run->level].block_rows};
    rows.block = level->block + run->block;
    rows.offset = part * level->head_bytes;
    rows.row0 = run->row0;
    rows.n = run->inside + run->n;
    /* blocks, in whole: what follows a chunk is fetched while that is worked on */
    int ahead = run->chunk / rows.block_rows;
    if (ahead == 0) ahead = 1;
    rows.n_later = level->n_block - run->block - ahead;
    if (rows.n_later < 0) rows.n_later = 0;
    if (rows.n_later) rows.later = rows.block + ahead;
    rows.later_pieces = run->end_part - run->first_part;
    rows.later_first = (part - run->first_part) * run->n_block;
    rows.later_offset = run->first_part * level->head_bytes;
    rows.later_bytes = level->head_bytes;
    return rows;
}
