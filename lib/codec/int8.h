/* Codec int8 (Selective KV quantization): symmetric, 8 bits, one scale per token and head.
 *
 *   head: | codes: lk_bitplanes_bytes(8, d_head), bitplanes.h | scale: f16 [LK_TILE] |
 *
 *   scale = max |x| / 127 + eps,  code = clip(round(x / scale), -127, 127),  x ~ scale * code
 *
 * eps keeps the division finite. It is below the smallest f16, so here a row of zeros has scale 0.
 * Codes are stored plus LK_INT8_MID, to be unsigned like those of the other codecs. Row-wise. */
#ifndef LK_CODEC_INT8_H
#define LK_CODEC_INT8_H

#include "codec/ops.h"

enum { LK_INT8_MID = 128 };

#define LK_INT8_EPS 1e-8f

extern const struct lk_coding_ops lk_int8_ops;

/* [LK_TILE] */
static inline const uint16_t *lk_int8_scales(const void *head, int d_head) {
    return (const uint16_t *)((const char *)head + (size_t)LK_TILE * d_head);
}

#endif
