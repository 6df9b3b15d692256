/* Codec kvarn (KVarN; Müller et al. 2026): Hadamard transform, variances normalized along both axes
 * of a block, then plain rounding to 2 to 8 bits.
 *
 * A block has LK_KVARN_ROWS tokens, y = H x (hadamard.h). A vector is one channel of K over all
 * rows of the block, or one row of V. Value i of vector v is divided by across[i] along[v], which
 * alternating steps choose so that the values of each i, and those of each v, get the deviation 1:
 *
 *   across[i] *= deviation over all v of y[v][i] / (across[i] along[v])
 *   along[v]  *= deviation over all i of y[v][i] / (across[i] along[v])
 *
 * Of LK_KVARN_STEPS steps the one is used that leaves the smallest imbalance: the largest deviation
 * over the smallest one, added over both axes. Deviations are those of samples (n - 1), and
 * logarithms of factors have the published code's limits, once the block as a whole has the
 * deviation 1. (Published blocks are used as they are, whatever their deviation; with the lower
 * limit, -0.3, lines whose values have a deviation below 0.74 are then not normalized.)
 *
 *   z = y / across                         along[v] is in the vector's range
 *   scale[v] = (max z - min z) / (2^bits - 1),  code = round((z - min) / scale[v])
 *   y ~ (scale[v] code + min[v]) across[i]
 *
 *   head: | tile 0 | ... | tile LK_KVARN_ROWS / LK_TILE - 1 |    codes, bitplanes.h
 *         | scale: f16 [n_vector] | min: f16 [n_vector] | across: f16 [length] |
 *
 * The published code rounds with the ranges before they are stored; here codes are those of the
 * stored numbers, which is closer. Encodes whole blocks only. */
#ifndef LK_CODEC_KVARN_H
#define LK_CODEC_KVARN_H

#include "codec/bitplanes.h"
#include "codec/ops.h"

enum {
    LK_KVARN_ROWS = 128,
    LK_KVARN_STEPS = 16,
    LK_KVARN_MAX_D_HEAD = 1024 /* a block of floats is on the stack */
};

extern const struct lk_codec_ops lk_kvarn_ops;

/* Vectors of a block, and values of a vector. */
static inline int lk_kvarn_vectors(enum lk_side side, int d_head) {
    return side == LK_K ? d_head : LK_KVARN_ROWS;
}
static inline int lk_kvarn_length(enum lk_side side, int d_head) {
    return side == LK_K ? LK_KVARN_ROWS : d_head;
}

/* The tile of codes that holds row `row` of a block. */
static inline const void *lk_kvarn_tile(const struct lk_codec *codec, const void *head, int d_head,
                                        int row) {
    return (const char *)head + row / LK_TILE * lk_bitplanes_bytes(codec->bits, d_head);
}

/* The scales. As many minima follow, and then across. */
static inline const uint16_t *lk_kvarn_scales(const struct lk_codec *codec, const void *head,
                                              int d_head) {
    return (const uint16_t *)lk_kvarn_tile(codec, head, d_head, LK_KVARN_ROWS);
}

#endif
