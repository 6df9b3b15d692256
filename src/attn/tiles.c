#include "attn/tiles.h"

/* Bytes between a tile and the later one that is asked for while it is worked on (docs/performance.md). */
enum { AHEAD = 3 << 10 };

/* The tile of rows [row0, row0 + LK_TILE) of the block, as far as there are such. */
static void look(struct lk_tiles *t, int row0) {
    const struct lk_level *level = &t->stream->level[t->level];
    int block_rows = t->tile.block_rows;
    int64_t n = t->n_slot - t->block * block_rows - row0;
    if (n > block_rows - row0) n = block_rows - row0;
    t->tile.row0 = row0;
    t->tile.n = (int)(n < LK_TILE ? n : LK_TILE);
    t->tile.head = level->block[t->block];
}

void lk_tiles_begin(struct lk_tiles *t, const struct lk_stream *stream, int level, int64_t level_first, int64_t pos,
                    int first_part, int end_part) {
    const struct lk_fill *fill = &stream->fill[level];
    int block_rows = stream->rule[level].block_rows;
    int64_t slot = fill->skip + (pos - level_first);
    int row = (int)(slot % block_rows);
    t->stream = stream;
    t->level = level;
    t->first_part = first_part;
    t->end_part = end_part;
    size_t head_bytes = stream->level[level].head_bytes;
    int step = (int)((AHEAD + head_bytes - 1) / head_bytes);
    t->step_block = step / (end_part - first_part);
    t->step_part = step % (end_part - first_part);
    t->block = slot / block_rows;
    t->n_slot = fill->skip + fill->rows;
    t->at = pos - row % LK_TILE;
    t->tile = (struct lk_tile){.codec = &stream->rule[level].codec, .d_head = stream->level[level].d_part, .block_rows = block_rows};
    look(t, row - row % LK_TILE);
}

void lk_tiles_next(struct lk_tiles *t) {
    int row0 = t->tile.row0 + LK_TILE;
    t->at += t->tile.n;
    if (row0 >= t->tile.block_rows) {
        t->block++;
        row0 = 0;
    }
    look(t, row0);
}

/* Where the bytes begin that are read AHEAD bytes after a part's, or NULL. */
static const char *later(const struct lk_tiles *t, int part) {
    const struct lk_level *level = &t->stream->level[t->level];
    int64_t block = t->block + t->step_block;
    part += t->step_part;
    if (part >= t->end_part) {
        part -= t->end_part - t->first_part;
        block++;
    }
    if (t->tile.row0 + t->tile.n < t->tile.block_rows || block * t->tile.block_rows >= t->n_slot) return NULL;
    return (const char *)level->block[block] + part * level->head_bytes;
}

struct lk_tile lk_tiles_part(const struct lk_tiles *t, int part) {
    struct lk_tile tile = t->tile;
    tile.head = (const char *)tile.head + part * t->stream->level[t->level].head_bytes;
    tile.next = later(t, part);
    tile.sigma = lk_sigma_of(t->stream, t->level, part);
    return tile;
}
