/* Packed codes of a tile: bit planes, in the order that the integer kernels read.
 *
 * A tile has LK_TILE tokens x d_head channels of codes of 1 to 8 bits. It is divided into d_head
 * cells of 32 codes each: 8 rows x 4 columns. A dot product leaves one sum per row and sums over
 * the columns: for K the rows are tokens, for V they are channels. One multiply-add instruction
 * sums four neighboring bytes and so leaves one row per 32-bit lane:
 *
 *   K  cell: 8 tokens x 4 channels            V  cell: 8 channels x 4 tokens
 *      byte: | t0: c0 c1 c2 c3 | t1: c0 ..       byte: | c0: t0 t1 t2 t3 | c1: t0 ..
 *            .. | t7: c0 c1 c2 c3 |                    .. | c7: t0 t1 t2 t3 |
 *      cell = (c / 4) * 4 + t / 8                cell = (c / 8) * 8 + t / 4
 *
 * A code of b bits is split, low bits first, into planes of 8, 4, 2 or 1 bits (3 = 2 + 1,
 * 7 = 4 + 2 + 1). The planes are stored one after another. In a plane of w bits, byte i of the j-th
 * group of 32 bytes holds code i of 8/w consecutive cells, the first cell in the lowest bits:
 *
 *   w = 4   byte i: | cell 2j+1 : cell 2j |
 *   w = 2   byte i: | cell 4j+3 : cell 4j+2 : cell 4j+1 : cell 4j |
 *   w = 1   byte i: | cell 8j+7 : ... : cell 8j |                 so d_head must be a multiple of
 * 8 */
#ifndef LK_CODEC_BITPLANES_H
#define LK_CODEC_BITPLANES_H

#include "codec/codec.h"

enum { LK_MAX_PLANES = 3 };

/* Widths of the planes of b-bit codes, low bits first. Returns the number of planes. */
static inline int lk_bitplanes_widths(int bits, int width[LK_MAX_PLANES]) {
    int n = 0;
    if (bits == 8) width[n++] = 8;
    if (bits != 8 && bits & 4) width[n++] = 4;
    if (bits != 8 && bits & 2) width[n++] = 2;
    if (bits != 8 && bits & 1) width[n++] = 1;
    return n;
}

/* Index of (token, channel) in the order of a tile's codes: cell * 32 + byte. */
static inline int lk_bitplanes_index(enum lk_side side, int t, int c) {
    if (side == LK_K) return ((c / 4) * 4 + t / 8) * 32 + t % 8 * 4 + c % 4;
    return ((c / 8) * 8 + t / 4) * 32 + c % 8 * 4 + t % 4;
}

/* Bytes of a packed tile, a multiple of 32. */
static inline size_t lk_bitplanes_bytes(int bits, int d_head) {
    return (size_t)LK_TILE / 8 * bits * d_head;
}

/* Pack and unpack the codes [d_head] of token t of a tile. */
void lk_bitplanes_pack_row(enum lk_side side, int bits, int d_head, void *tile, int t,
                           const uint8_t *code);
void lk_bitplanes_unpack_row(enum lk_side side, int bits, int d_head, const void *tile, int t,
                             uint8_t *code);

#endif
