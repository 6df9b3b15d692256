/* Tiles of a run of rows, which kernels work on one by one, and prefetching of what comes next. */
#ifndef LK_KERNELS_TILE_H
#define LK_KERNELS_TILE_H

#include "kernels/inline.h"
#include "kernels/kernels.h"

#include <stdint.h>
#include <string.h>

struct lk_tile {
    const struct lk_codec *codec;
    const void *head;   /* the head's part of the block */
    const float *sigma; /* [d_head] or NULL */
    int d_head, block_rows;
    int row0; /* first row in the block, a multiple of LK_TILE */
    int n;    /* rows, 1 <= n <= LK_TILE */
    /* Bytes to fetch while this tile is worked on, each NULL if there are none. */
    const void *next;     /* the next tile of the run */
    const void *prefetch; /* a piece of struct lk_prefetch */
};

static inline int lk_rows_n_tile(const struct lk_rows *rows) {
    return (rows->n + LK_TILE - 1) / LK_TILE;
}

/* Tile i of a run, i < lk_rows_n_tile. Starts to fetch tile i of rows->fetch. */
static inline struct lk_tile lk_rows_tile(const struct lk_rows *rows, int i) {
    enum { LINE = 64 };
    if (i < rows->fetch.n)
        for (size_t at = 0; at < rows->fetch.bytes; at += LINE)
            __builtin_prefetch((const char *)rows->fetch.tile[i] + at, 0, 2);
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
    const struct lk_prefetch *ahead = &rows->prefetch;
    int piece = ahead->first + b, block = ahead->n_block ? piece / ahead->n_piece : 0;
    if (block < ahead->n_block)
        tile.prefetch = (const char *)ahead->block[block] + ahead->offset +
                        piece % ahead->n_piece * ahead->bytes;
    return tile;
}

/* Where to fetch from. If there is nothing to fetch, the tile itself, so that kernels need not
 * branch. */
static inline const char *lk_tile_next(const struct lk_tile *tile) {
    return tile->next ? tile->next : tile->head;
}
static inline const char *lk_tile_ahead(const struct lk_tile *tile) {
    return tile->prefetch ? tile->prefetch : tile->head;
}

/* Fetch bytes [from, to) of the next tile into the first-level cache, and the same bytes of the
 * piece ahead into the second-level cache. The next tile was such a piece once, so it is in the
 * second-level cache already. Must be inlined: gcc drops calls of functions that only prefetch. */
LK_ALWAYS_INLINE void lk_tile_prefetch_lines(const struct lk_tile *tile, size_t from, size_t to) {
    enum { LINE = 64 };
    const char *next = lk_tile_next(tile), *ahead = lk_tile_ahead(tile);
    size_t i = from;
    for (; i + LINE < to; i += 2 * LINE) {
        __builtin_prefetch(next + i, 0, 3);
        __builtin_prefetch(ahead + i, 0, 2);
        __builtin_prefetch(next + i + LINE, 0, 3);
        __builtin_prefetch(ahead + i + LINE, 0, 2);
    }
    if (i < to) {
        __builtin_prefetch(next + i, 0, 3);
        __builtin_prefetch(ahead + i, 0, 2);
    }
}

/* If a page starts within bytes [from, to) of the piece ahead, fetch the first lines of the page
 * after it. The hardware prefetcher runs ahead of the lines that are requested but stops at the end
 * of a page. Without this, every page would start with a stall. */
LK_ALWAYS_INLINE void lk_tile_prefetch_page(const struct lk_tile *tile, size_t from, size_t to) {
    enum { LINE = 64, PAGE = 4096, N_LINE = 3 };
    const char *ahead = lk_tile_ahead(tile);
    size_t page = from + (-((uintptr_t)ahead + from) & (PAGE - 1));
    for (int k = 0; page < to && k < N_LINE; k++)
        __builtin_prefetch(ahead + page + PAGE + LINE * k, 0, 2);
}

LK_ALWAYS_INLINE void lk_tile_prefetch(const struct lk_tile *tile, size_t from, size_t to) {
    lk_tile_prefetch_lines(tile, from, to);
    lk_tile_prefetch_page(tile, from, to);
}

/* Same as above, without the next tile. It is in the second-level cache already, and the hardware
 * prefetcher fetches it from there. Its requests would compete with those of the piece ahead for
 * the core's few line-fill buffers. Measure which function is faster for a kernel. */
LK_ALWAYS_INLINE void lk_tile_prefetch_ahead(const struct lk_tile *tile, size_t from, size_t to) {
    enum { LINE = 64 };
    const char *ahead = lk_tile_ahead(tile);
    for (size_t i = from; i < to; i += LINE) __builtin_prefetch(ahead + i, 0, 2);
    lk_tile_prefetch_page(tile, from, to);
}

/* A quantization step of weights or queries that is not above this counts as 0: there is nothing to
 * add, and 1 / step would overflow. */
#define LK_MIN_STEP 1e-30f

/* ---- unpacking codes of any width ---- */

/* Unpack the planes of a tile (codec/bitplanes.h) to bytes, cells [LK_TILE * d_head]. levels: NULL,
 * or a table of 16 bytes that replace the codes. `bits` and `levels == NULL` are constants, so that
 * branches on them disappear. */
typedef void lk_unpack_planes(int bits, int d_head, const uint8_t *tile, const uint8_t *levels,
                              uint8_t *cells);

/* unpack() with constant bits. table [1 << bits] replaces codes of 2 to 4 bits; NULL: keep codes.
 * Returns the bytes: codes of 8 bits are not copied. */
LK_ALWAYS_INLINE const uint8_t *lk_unpack_tile(int bits, int d_head, const void *tile,
                                               const uint8_t *table, uint8_t *cells,
                                               lk_unpack_planes *unpack) {
    uint8_t levels[16] = {0};
    if (table) {
        memcpy(levels, table, (size_t)1 << bits);
        if (bits == 2) unpack(2, d_head, tile, levels, cells);
        if (bits == 3) unpack(3, d_head, tile, levels, cells);
        if (bits == 4) unpack(4, d_head, tile, levels, cells);
        return cells;
    }
    switch (bits) {
    case 1: unpack(1, d_head, tile, NULL, cells); return cells;
    case 2: unpack(2, d_head, tile, NULL, cells); return cells;
    case 3: unpack(3, d_head, tile, NULL, cells); return cells;
    case 4: unpack(4, d_head, tile, NULL, cells); return cells;
    case 5: unpack(5, d_head, tile, NULL, cells); return cells;
    case 6: unpack(6, d_head, tile, NULL, cells); return cells;
    case 7: unpack(7, d_head, tile, NULL, cells); return cells;
    default: return tile;
    }
}

#endif
