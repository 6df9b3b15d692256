/* Half floats: sinks, windows, and the full cache.
 *
 *   head: | row 0: f16 [d_head] | row 1 | ... | row block_rows - 1 | padding to 32 bytes |
 *
 * Row-wise; any number of rows. Values beyond the largest half saturate. */
#ifndef LK_CODEC_F16_H
#define LK_CODEC_F16_H

#include "codec/ops.h"

static inline const uint16_t *lk_f16_row(const void *head, int d_head, int row) {
    return (const uint16_t *)head + (size_t)row * d_head;
}

#endif
