/* Codec f16: half precision, for sinks, windows and the uncompressed cache.
 *
 *   head: | row 0: f16 [d_head] | row 1 | ... | row block_rows - 1 | padding to 32 bytes |
 *
 * Row-wise, with any number of rows per block. Values beyond the largest f16 saturate.
 */
#ifndef LK_CODEC_F16_H
#define LK_CODEC_F16_H

#include "codec/ops.h"

extern const struct lk_coding_ops lk_f16_ops;

static inline const uint16_t *lk_f16_row(const void *head, int d_head, int row) {
    return (const uint16_t *)head + (size_t)row * d_head;
}

#endif
