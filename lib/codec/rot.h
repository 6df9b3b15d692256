/* Codec rot: rotated codes of 1 to 8 bits, with one unbiased scale per token and head.
 *
 *   y = H ((x - mean) / sigma)             rotated by hadamard.h; mean and sigma are optional
 *   code = nearest entry to y / rms(y)     in a codebook for a unit Gaussian, which y nearly is
 *   scale = <y, y> / <entry, y>            so that <y^, y> = <y, y> for y^ = scale * entry
 *
 * An MSE-optimal scale would shrink every row. Attention sums many rows, so that bias would not
 * average out. The error of the unbiased scale is orthogonal to the row.
 *
 *   head: | codes: lk_bitplanes_bytes(bits, d_head), bitplanes.h |
 *         | scale: f16 [LK_TILE] | mean: i8 [d_head] |
 *
 * With `trellis` the levels are those of trellis-coded quantization (trellis.h), which chooses the
 * codes of several rows together: y is then divided by a scale that is known before them.
 *
 * Scales are never negative. If there is a mean, bit t of its f32 scale is stored in the sign bit
 * of token t's scale: four separate bytes would be padded to 32. The mean is taken over the rotated
 * rows and rounded as stored, so its rounding error stays in the rows and is quantized with them.
 * Without a mean there are no bytes for it, and the codec is row-wise. */
#ifndef LK_CODEC_ROT_H
#define LK_CODEC_ROT_H

#include "codec/bitplanes.h"
#include "codec/ops.h"

extern const struct lk_coding_ops lk_rot_ops;

/* A codebook. Code i stands for (table[i] - top / 2) * unit * rms of the row. */
struct lk_rot_codebook {
    const uint8_t *table; /* [1 << bits], NULL for the uniform codebook: table[code] = code.
                             Trellis: [LK_TRELLIS_LEVELS], by index instead of by code */
    int top;              /* largest entry */
    float unit;
};

struct lk_rot_codebook lk_rot_codebook(const struct lk_codec *codec);

/* The same codebook, prepared for the search (without a trellis). It is symmetric: code half + k
 * stands for magnitude[k], and code half - 1 - k for -magnitude[k], times the row's step. k is the
 * number of borders below the value. The uniform codebook has no borders: k is the number of whole
 * steps, and the magnitude is k + 0.5. The step of a row is the best of n_trial multiples of a
 * guess. The guess is the largest value divided by `reach` for fine codes, and rms times `unit` for
 * coarse ones. */
enum { LK_ROT_TRIALS = 5 };

struct lk_rot_quantizer {
    int half, n_border, n_trial;
    bool fine;
    float reach, unit, magnitude[8], border[8];
    const float *trial; /* [n_trial], static */
};

struct lk_rot_quantizer lk_rot_quantizer(const struct lk_codec *codec);

/* Quantize a rotated mean [d] to int8: sets the codes [d] and replaces the mean by scale * code.
 * Returns the scale. */
float lk_rot_round_mean(float *mean, int d, int8_t *code);

/* Store and load the scale of the mean in the sign bits of the rows' scales [LK_TILE]. */
void lk_rot_store_mean_scale(uint16_t *scale, float mean_scale);
float lk_rot_load_mean_scale(const uint16_t *scale);

/* Scales of the rows [LK_TILE]. Their sign bits belong to the scale of the mean. */
static inline const uint16_t *lk_rot_scales(const struct lk_codec *codec, const void *head,
                                            int d_head) {
    return (const uint16_t *)((const char *)head + lk_bitplanes_bytes(codec->bits, d_head));
}

/* Codes of the mean [d_head]. */
static inline const int8_t *lk_rot_mean(const struct lk_codec *codec, const void *head,
                                        int d_head) {
    return (const int8_t *)(lk_rot_scales(codec, head, d_head) + LK_TILE);
}

#endif
