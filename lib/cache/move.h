/* Rows between levels: what settling is made of. All work on one stream, and count what they do. */
#ifndef LK_CACHE_MOVE_H
#define LK_CACHE_MOVE_H

#include "cache/cache.h"

/* Take channel statistics, where the level older than `from` wants them and none were taken. */
void lk_move_calibrate(struct lk_cache *cache, struct lk_kv *kv, int from);

/* Decode a level's oldest n <= LK_MAX_MOVE rows into stream->rows. */
void lk_move_read(const struct lk_cache *cache, const struct lk_kv *kv, int level, int64_t n);

/* Encode x [n][n_head_kv][d_head] behind the level's newest row; false where there is no memory. */
bool lk_move_put(struct lk_cache *cache, struct lk_kv *kv, int level, const float *x, int64_t n);

/* Forget a level's oldest n rows, and blocks of which none is left. */
void lk_move_drop(struct lk_cache *cache, struct lk_kv *kv, int level, int64_t n);

#endif
