/* Rotated codes: 1 to 8 bits per value and one unbiased scale per token and head.
 *
 *   y = H ((x - mean) / sigma)          rotated by hadamard.h; mean and sigma are optional
 *   code = nearest level of y / rms(y)  levels for a unit Gaussian, which y nearly is
 *   scale = <y, y> / <level, y>         so that <y^, y> = <y, y> for y^ = scale * level
 *
 * An MSE-optimal scale would shrink every row; attention sums many rows, so such a bias would not
 * average out, while the error that is left here is orthogonal to the row.
 *
 *   head: | codes: lk_cells_bytes(bits, d_head), cells.h | scale: f16 [LK_TILE] | mean: i8 [d_head] |
 *
 * Scales are never negative. With a mean, bit t of its f32 scale is the sign bit of token t's scale:
 * four bytes of their own would be padded to 32. The mean is of the rotated rows, as stored: what its
 * own rounding leaves stays in the rows and is coded with them. Without a mean there are no bytes for
 * it, and the codec is row-wise. */
#ifndef LK_CODEC_ROT_H
#define LK_CODEC_ROT_H

#include "codec/cells.h"
#include "codec/ops.h"

/* level(code) = table[code] - top / 2, in units of `unit` times the row's rms. */
struct lk_rot_levels {
    const uint8_t *table; /* [1 << bits], NULL where level is code itself */
    int            top;   /* of the last code                             */
    float          unit;
};

struct lk_rot_levels lk_rot_levels(const struct lk_codec *codec);

/* [LK_TILE]; the sign bits are not the scales'. */
static inline const uint16_t *lk_rot_scales(const struct lk_codec *codec, const void *head, int d_head) {
    return (const uint16_t *)((const char *)head + lk_cells_bytes(codec->bits, d_head));
}

/* [d_head] */
static inline const int8_t *lk_rot_mean(const struct lk_codec *codec, const void *head, int d_head) {
    return (const int8_t *)(lk_rot_scales(codec, head, d_head) + LK_TILE);
}

#endif
