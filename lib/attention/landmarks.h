/* Chunks of rows of K with landmarks (codec/f16.h): their scores, and their rows side by side.
 *
 * Kernels work on tiles, which are longer than chunks. So landmarks, and the rows of chosen chunks,
 * are first copied into contiguous tiles in the scratch. */
#ifndef LK_ATTENTION_LANDMARKS_H
#define LK_ATTENTION_LANDMARKS_H

#include "attention/read.h"

/* Floats of read->rows, for heads of d_head channels. */
size_t lk_landmarks_gather_floats(int d_head);

/* Scores of a zone's chunks for all queries of the item, and the chunks' distances: read->score and
 * read->distance. */
void lk_landmarks_score(struct lk_attn_item *item, const struct lk_read *read,
                        const struct lk_read_zone *zone);

/* Copy the rows of n chunks of the item's first KV head to read->rows, n <= LK_ATTN_CHUNK /
 * LK_LANDMARK_ROWS. rows: [LK_K] and [LK_V]; V's have zeros up to a multiple of LK_TILE. block [2]:
 * memory for rows[].block. */
void lk_landmarks_gather(const struct lk_attn_item *item, const struct lk_read *read,
                         const struct lk_read_zone *zone, const int *chunk, int n, void **block,
                         struct lk_rows *rows);

#endif
