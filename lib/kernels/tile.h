/* A run of rows, tile by tile: what kernels work on. */
#ifndef LK_KERNELS_TILE_H
#define LK_KERNELS_TILE_H

#include "kernels/kernels.h"

#include <stdint.h>

/* Templates over a number of queries: inlined where it is constant, so that their inner loops unroll
 * and arrays of vectors become registers. */
#define LK_ALWAYS_INLINE static inline __attribute__((always_inline))

struct lk_tile {
    const struct lk_codec *codec;
    const void *head;   /* the head's part of the block */
    const float *sigma; /* [d_head] or NULL */
    int d_head, block_rows;
    int row0, n;       /* rows [row0, row0 + n) of the block; row0 a multiple of
                                          LK_TILE, 1 <= n <= LK_TILE */
    const void *next;  /* where the next tile's bytes begin, or NULL */
    const void *later; /* where bytes begin that are read much later */
};

static inline int lk_rows_tiles(const struct lk_rows *rows) {
    return (rows->n + LK_TILE - 1) / LK_TILE;
}

/* Tile i < lk_rows_tiles() of them. */
static inline struct lk_tile lk_rows_tile(const struct lk_rows *rows, int i) {
    int row = rows->row0 + i * LK_TILE, b = i, left = rows->n - i * LK_TILE;
    if (rows->block_rows == LK_TILE)
        row = 0;
    else
        b = row / rows->block_rows, row %= rows->block_rows;
    struct lk_tile tile = {.codec = rows->codec,
                           .sigma = rows->sigma,
                           .d_head = rows->d_head,
                           .block_rows = rows->block_rows,
                           .row0 = row};
    tile.head = (const char *)rows->block[b] + rows->offset;
    tile.n = left < LK_TILE ? left : LK_TILE;
    if (row + LK_TILE < rows->block_rows) return tile;
    if (left > LK_TILE) tile.next = (const char *)rows->block[b + 1] + rows->offset;
    int piece = rows->later_first + b, later = rows->n_later ? piece / rows->later_pieces : 0;
    if (later < rows->n_later)
        tile.later = (const char *)rows->later[later] + rows->later_offset +
                     piece % rows->later_pieces * rows->later_bytes;
    return tile;
}

/* Where bytes are that the next tile's kernel will read, and one much later; the tile's own where there are none. */
static inline const char *lk_tile_next(const struct lk_tile *tile) {
    return tile->next ? tile->next : tile->head;
}
static inline const char *lk_tile_later(const struct lk_tile *tile) {
    return tile->later ? tile->later : tile->head;
}

/* Fetch bytes [from, to) of the next tile into the first-level cache, where its rows have come as far as the second,
 * and as many of what is read later into the second. Inlined, because gcc drops calls of functions that only fetch. */
LK_ALWAYS_INLINE void lk_tile_fetch_lines(const struct lk_tile *tile, size_t from, size_t to) {
    enum { LINE = 64 };
    const char *next = lk_tile_next(tile), *later = lk_tile_later(tile);
    size_t i = from;
    for (; i + LINE < to; i += 2 * LINE) {
        __builtin_prefetch(next + i, 0, 3);
        __builtin_prefetch(later + i, 0, 2);
        __builtin_prefetch(next + i + LINE, 0, 3);
        __builtin_prefetch(later + i + LINE, 0, 2);
    }
    if (i < to) {
        __builtin_prefetch(next + i, 0, 3);
        __builtin_prefetch(later + i, 0, 2);
    }
}

/* Where bytes [from, to) of what is read later begin a page, fetch the first lines of the page that follows: the hardware runs
 * ahead of lines that were asked for, but not into another page, so that each page would begin with a wait. */
LK_ALWAYS_INLINE void lk_tile_fetch_page(const struct lk_tile *tile, size_t from, size_t to) {
    enum { LINE = 64, PAGE = 4096, FIRST = 3 };
    const char *later = lk_tile_later(tile);
    size_t page = from + (-((uintptr_t)later + from) & (PAGE - 1));
    for (int k = 0; page < to && k < FIRST; k++)
        __builtin_prefetch(later + page + PAGE + LINE * k, 0, 2);
}

/* Both. */
LK_ALWAYS_INLINE void lk_tile_fetch(const struct lk_tile *tile, size_t from, size_t to) {
    lk_tile_fetch_lines(tile, from, to);
    lk_tile_fetch_page(tile, from, to);
}

/* kern.h's score and accumulate, by what does one tile. */
typedef void lk_score_tile(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                           size_t stride);
typedef void lk_accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                                float *acc);

static inline void lk_score_tiles(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                                  size_t stride, lk_score_tile *score) {
    for (int i = 0; i < lk_rows_tiles(rows); i++) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score(&tile, q, s + i * LK_TILE, stride);
    }
}

static inline void lk_accumulate_tiles(const struct lk_rows *rows, const float *p, size_t stride,
                                       int n_q, float *acc, lk_accumulate_tile *accumulate) {
    for (int i = 0; i < lk_rows_tiles(rows); i++) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate(&tile, p + i * LK_TILE, stride, n_q, acc);
    }
}

#endif
