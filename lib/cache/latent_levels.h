/* What levels of latents need in addition to their blocks: the components of the basis that they
 * read, and K's up-projection in the kernels' layout if it was projected before RoPE.
 *
 * Most of it is shared by the caches of a model, in a store. Entries are created when the first
 * cache needs them and freed with the last one. A copy of a basis holds the components that a
 * recipe reads. A cache that needs fewer uses a larger copy that exists. */
#ifndef LK_CACHE_LATENT_LEVELS_H
#define LK_CACHE_LATENT_LEVELS_H

#include "base/err.h"
#include "base/ledger.h"
#include "sidecar/basis.h"

struct lk_cache;
struct lk_k_up;
struct lk_k_up_use;
struct lk_kv;
struct lk_level;

/* ---- the store ---- */

struct lk_latent_store;

/* An empty store. `ledger` is borrowed; it counts the entries, as weights. *out is owned:
 * lk_latent_store_free, once every entry is returned. LK_E_NOMEM. */
lk_status lk_latent_store_new(struct lk_latent_store **out, struct lk_ledger *ledger, lk_err *err);
void lk_latent_store_free(struct lk_latent_store *store);

/* Bytes of the entries. */
uint64_t lk_latent_store_bytes(struct lk_latent_store *store);

/* The first n_comp components, or more, of a basis that outlives the store. LK_E_NOMEM. */
lk_status lk_latent_store_basis(struct lk_latent_store *store, const struct lk_basis *of,
                                int n_comp, const struct lk_basis **out, lk_err *err);

/* The up-projection of all KV heads of a level (cache/k_up.h), for a codec without sigma.
 * LK_E_NOMEM. */
lk_status lk_latent_store_k_up(struct lk_latent_store *store, const struct lk_level *level,
                               const struct lk_k_up_use *use, struct lk_k_up **out, lk_err *err);

/* Return what one of the functions above has given. NULL does nothing. */
void lk_latent_store_return(struct lk_latent_store *store, const void *content);

/* ---- the levels of a cache ---- */

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
