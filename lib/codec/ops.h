/* The operations that each codec provides to codec.c, and the rounding that all codecs share. */
#ifndef LK_CODEC_OPS_H
#define LK_CODEC_OPS_H

#include "codec/codec.h"

/* See the functions of the same names in codec.h. */
struct lk_coding_ops {
    /* NULL: LK_TILE */
    int (*block_rows)(const struct lk_codec *codec, enum lk_side side);
    /* NULL: always */
    bool (*row_wise)(const struct lk_codec *codec, enum lk_side side);
    /* NULL: 8 */
    int (*unit)(const struct lk_codec *codec, enum lk_side side);
    /* NULL: any d_head that codec.c accepts */
    const char *(*reject_reason)(const struct lk_codec *codec, enum lk_side side, int d_head);
    /* before rounding up to 32 */
    size_t (*head_bytes)(const struct lk_part *part);
    /* NULL: 0 */
    size_t (*scale_bytes)(const struct lk_part *part);
    void (*print)(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap);
    void (*encode)(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride);
    /* NULL: row-wise codecs encode the row again, the others cannot replace rows */
    void (*replace)(const struct lk_part *part, void *head, int row, const float *x);
    void (*decode)(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride);
};

/* Clamp a value before quantization: NaN becomes 0, and magnitudes are limited so that no sum of
 * squares overflows. */
static inline float lk_clamp_finite(float x) {
    const float max = 1e9f;
    if (!(x > -max)) return x != x ? 0.0f : -max;
    return x < max ? x : max;
}

/* Round to the nearest integer, halves away from zero, for |x| < 2^23. The vector kernels of every
 * CPU round in the same way. */
static inline float lk_round_half_away(float x) {
    return (float)(int)(x < 0 ? x - 0.5f : x + 0.5f);
}

#endif
