/* Codec kivi (KIVI; Liu et al. 2024, section 3): asymmetric, 2 or 4 bits.
 *
 *   scale = (max - min) / (2^bits - 1),  code = round((x - min) / scale),  x ~ scale * code + min
 *
 * K: per channel over `group` tokens. A block is one group: group / LK_TILE tiles of codes
 * (bitplanes.h) that share the scale and the minimum of each channel. Encodes whole blocks only.
 *
 *   head: | tile 0 | ... | tile group / LK_TILE - 1 | scale: f16 [d_head] | min: f16 [d_head] |
 *
 * V: per token over `group` channels. A block is one tile. Row-wise.
 *
 *   head: | tile | scale: f16 [d_head / group][LK_TILE] | min: f16 [d_head / group][LK_TILE] |
 *
 * A row of K that replaces another one is clamped to the ranges of its block, which stay as they
 * are: no other row changes, however many rows are replaced. With the ranges of 32 Gaussian rows,
 * 6 % of a new row's numbers lie outside. Its squared error is 1.14 times (2 bits) or 3.9 times (4
 * bits) that of rows that were encoded together; with groups of 128 it is 1.01 and 1.4 times
 * (tests/codec/test_codec.c, kivi_replaces_rows).
 *
 * A group of equal numbers has scale 0 and codes 0. (The published code divides by zero there.) */
#ifndef LK_CODEC_KIVI_H
#define LK_CODEC_KIVI_H

#include "codec/bitplanes.h"
#include "codec/ops.h"

extern const struct lk_coding_ops lk_kivi_ops;

/* The tile that holds row `row` of a block. */
static inline const void *lk_kivi_tile(const struct lk_codec *codec, const void *head, int d_head,
                                       int row) {
    return (const char *)head + row / LK_TILE * lk_bitplanes_bytes(codec->bits, d_head);
}

/* The scales. lk_kivi_groups of them are followed by as many minima. */
static inline const uint16_t *lk_kivi_scales(const struct lk_codec *codec, enum lk_side side,
                                             const void *head, int d_head) {
    int n_tile = side == LK_K ? codec->group / LK_TILE : 1;
    return (const uint16_t *)((const char *)head +
                              n_tile * lk_bitplanes_bytes(codec->bits, d_head));
}

static inline int lk_kivi_groups(const struct lk_codec *codec, enum lk_side side, int d_head) {
    return side == LK_K ? d_head : d_head / codec->group * LK_TILE;
}

#endif
