/* Moves into levels of latents, on a device that takes commands: rows are decoded to floats,
 * projected into the level's basis, and encoded. The three steps are three lists of commands, for
 * some moves at a time, whose floats lie in room that the cache has on the device. */
#ifndef LK_CACHE_MOVE_PROJECT_H
#define LK_CACHE_MOVE_PROJECT_H

#include "cache/move.h"

struct lk_cache;

/* Room for such moves, if the cache has levels of latents: for a list of K and for a list of V,
 * which threads may run at the same time. False without memory. */
bool lk_projecting_new(struct lk_cache *cache);
void lk_projecting_free(struct lk_cache *cache);

/* Bytes of the device that lk_projecting_new allocates. */
uint64_t lk_projecting_bytes(const struct lk_cache *cache);

/* Execute those of the moves [n] that project, which do not depend on each other. */
lk_status lk_moves_project(struct lk_cache *cache, const struct lk_move *move, size_t n);

#endif
