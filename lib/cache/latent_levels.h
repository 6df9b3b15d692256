/* What levels of latents need in addition to their blocks: the components of the basis that they
 * read, and K's up-projection if it was projected before RoPE. Most of it is shared with other
 * caches (latent_store.h). */
#ifndef LK_CACHE_LATENT_LEVELS_H
#define LK_CACHE_LATENT_LEVELS_H

#include "base/err.h"

#include <stdint.h>

struct lk_cache;
struct lk_kv;

/* Replace the whole bases of the levels by shared copies of what they read, and allocate
 * up-projections. After LK_E_NOMEM, close. */
lk_status lk_latent_levels_open(struct lk_cache *cache, lk_err *err);
void lk_latent_levels_close(struct lk_cache *cache);

/* Prepare one part of the cache's own up-projection, once sigma is known. Does nothing if the level
 * has none of its own. */
void lk_latent_level_prepare(struct lk_kv *kv, int level, int part);

/* The same for all parts of all levels whose sigma is known. */
void lk_latent_levels_restore(struct lk_kv *kv);

/* Bytes that lk_latent_levels_open will allocate for the cache alone, and in the store if that is
 * empty. */
void lk_latent_levels_estimate(const struct lk_cache *cache, uint64_t *own, uint64_t *shared);

#endif
