/* Channel statistics of a stream, taken once, from the first rows that are about to be coded. */
#ifndef LK_CACHE_CALIBRATE_H
#define LK_CACHE_CALIBRATE_H

#include "cache/cache.h"

/* Fill stream->sigma with the square root of each channel's standard deviation within tiles of
 * LK_TILE rows, over all rows that level `level` holds. (DESIGN: dividing K by sqrt(sigma) before
 * the rotation; the deviation is taken about the tile's mean, because that mean is removed anyway.) */
void lk_calibrate(struct lk_stream *stream, int level, const struct lk_cache_shape *shape);

#endif
