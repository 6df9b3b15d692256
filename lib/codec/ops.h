/* What a coding provides to codec.c. */
#ifndef LK_CODEC_OPS_H
#define LK_CODEC_OPS_H

#include "codec/codec.h"

/* One head's part of a block, as every operation needs to know it. */
struct lk_part {
    const struct lk_codec *codec;
    enum lk_side side;
    int d_head, block_rows;
    const float *sigma; /* [d_head] or NULL */
};

struct lk_codec_ops {
    int (*block_rows)(const struct lk_codec *codec, enum lk_side side);
    bool (*row_wise)(const struct lk_codec *codec, enum lk_side side);
    const char *(*refuses)(const struct lk_codec *codec, enum lk_side side,
                           int d_head);               /* NULL: never */
    size_t (*head_bytes)(const struct lk_part *part); /* before rounding up to 32 */
    size_t (*scale_bytes)(const struct lk_part *part);
    void (*print)(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap);
    void (*encode)(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride);
    void (*replace)(const struct lk_part *part, void *head, int row,
                    const float *x); /* NULL: encode, or none */
    void (*decode)(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride);
};

extern const struct lk_codec_ops lk_f16_ops, lk_int8_ops, lk_kivi_ops, lk_rot_ops;

/* x as a codec takes it: NaN becomes 0, and magnitudes stay where no sum of squares overflows. */
static inline float lk_tame(float x) {
    const float most = 1e9f;
    if (!(x > -most)) return x != x ? 0.0f : -most;
    return x < most ? x : most;
}

/* x rounded to the nearest integer, halves away from zero, for |x| < 2^23: as vectors of any CPU do it. */
static inline float lk_nearest(float x) { return (float)(int)(x < 0 ? x - 0.5f : x + 0.5f); }

#endif
