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
    int top;              /* of the last code */
    float unit;
};

struct lk_rot_levels lk_rot_levels(const struct lk_codec *codec);

/* The same levels as a search wants them. They are symmetric: code half + k stands for magnitude[k],
 * code half - 1 - k for -magnitude[k], times the row's step. k is the number of borders below, or,
 * without borders, of whole steps, and the magnitude is k + 0.5. A row's step is the best of n_trial
 * multiples of a guess: the largest value over `reach` for fine codes, else rms times `unit`. */
enum { LK_ROT_TRIALS = 5 };

struct lk_rot_coder {
    int half, n_border, n_trial;
    bool fine;
    float reach, unit, magnitude[8], border[8];
    const float *trial; /* [n_trial], static */
};

struct lk_rot_coder lk_rot_coder(const struct lk_codec *codec);

/* Round a rotated mean [d] to what is kept: codes, and mean = scale * code in place. Returns the scale. */
float lk_rot_round_mean(float *mean, int d, int8_t *code);

/* The mean's scale, in the sign bits of the rows' scales [LK_TILE]. */
void lk_rot_store_mean_scale(uint16_t *scale, float mean_scale);
float lk_rot_load_mean_scale(const uint16_t *scale);

/* [LK_TILE]; the sign bits are not the scales'. */
static inline const uint16_t *lk_rot_scales(const struct lk_codec *codec, const void *head,
                                            int d_head) {
    return (const uint16_t *)((const char *)head + lk_cells_bytes(codec->bits, d_head));
}

/* [d_head] */
static inline const int8_t *lk_rot_mean(const struct lk_codec *codec, const void *head,
                                        int d_head) {
    return (const int8_t *)(lk_rot_scales(codec, head, d_head) + LK_TILE);
}

#endif
