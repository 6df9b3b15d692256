/* The tiles of a level, one after the other, as attention reads them: a tile's rows of all parts lie side by
 * side in a block, so whoever takes every part of a tile before the next tile reads memory from end to end. */
#ifndef LK_ATTN_TILES_H
#define LK_ATTN_TILES_H

#include "cache/cache.h"
#include "kern/kern.h"

struct lk_tiles {
    const struct lk_stream *stream;
    int            level;
    int64_t        block, n_slot; /* the tile's block; rows of the level's blocks up to the last one held */
    int64_t        at;            /* position of the tile's first row                                     */
    int            first_part, end_part;   /* those that are read                                          */
    int            step_block, step_part;  /* from a part to the one that is asked for meanwhile           */
    struct lk_tile tile;          /* of part 0, without `next`                                            */
};

/* The tile of the row at position `pos`, of a level whose first row is at level_first. The tile may begin
 * before it. Parts [first_part, end_part) of it and of those that follow will be read, in this order. */
void lk_tiles_begin(struct lk_tiles *tiles, const struct lk_stream *stream, int level, int64_t level_first, int64_t pos,
                    int first_part, int end_part);

/* The tile after it. Behind the level's last row there is none, and this may not be called. */
void lk_tiles_next(struct lk_tiles *tiles);

/* The tile's rows of one part; its `next` is what lies AHEAD of it in the order of reading. */
struct lk_tile lk_tiles_part(const struct lk_tiles *tiles, int part);

#endif
