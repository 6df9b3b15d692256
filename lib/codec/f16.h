/* Codec f16: half precision, for sinks, windows and the uncompressed cache.
 *
 *   head: | row 0: f16 [d_head] | row 1 | ... | row block_rows - 1 | padding to 32 bytes |
 *
 * Row-wise, with any number of rows per block. Values beyond the largest f16 saturate.
 *
 * With landmarks (ShadowKV, section 4.1), for K: a chunk is LK_LANDMARK_ROWS consecutive rows, its
 * landmark is their mean, and its closeness the smallest cosine between the landmark and a row.
 *
 *   head: | rows, as above | landmarks: f16 [block_rows / 8][d_head] |
 *         | closeness: float [block_rows / 8] | padding to 32 bytes |
 *
 * Both are set when the last row of a chunk is stored, from the rows as they are stored. */
#ifndef LK_CODEC_F16_H
#define LK_CODEC_F16_H

#include "codec/ops.h"

enum { LK_LANDMARK_ROWS = 8 };

extern const struct lk_codec_ops lk_f16_ops;

static inline const uint16_t *lk_f16_row(const void *head, int d_head, int row) {
    return (const uint16_t *)head + (size_t)row * d_head;
}

/* The landmarks of a head's part, and the closeness of each chunk. */
static inline const uint16_t *lk_f16_landmarks(const void *head, int d_head, int block_rows) {
    return lk_f16_row(head, d_head, block_rows);
}
static inline const float *lk_f16_closeness(const void *head, int d_head, int block_rows) {
    int n_chunk = block_rows / LK_LANDMARK_ROWS;
    return (const float *)lk_f16_row(head, d_head, block_rows + n_chunk);
}

/* Set what belongs to the chunks that rows [row0, row0 + n) complete. Called after these rows were
 * stored. */
void lk_f16_update_landmarks(const struct lk_part *part, void *head, int row0, int n);

#endif
