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
#include "cache/kv.h"
#include "sidecar/basis.h"

struct lk_cache;

/* The up-projection of K before RoPE, prepared for scoring.
 *
 * For each KV head these are the rows of up: d_head vectors with a channel per component, in the
 * order of RoPE's pairs (cache/rope.h), transformed into the domain of the level's codec and
 * prepared as queries to its codes. Only the forms that these codes' kernels read are kept.
 *
 * A codec's channel statistics (sigma) are part of its domain. With them, each session has its own
 * copy, prepared once they are known. Without them, all sessions share one. */
struct lk_k_up {
    struct lk_queries up; /* n_q = d_head; arrays that are not kept are NULL */
    /* Of the first head only: what the vectors of all heads were made for. */
    const struct lk_basis *basis;
    struct lk_codec codec;
    const struct lk_kernels *kernels;
};

/* ---- the store ---- */

struct lk_latent_store;

/* An empty store. `ledger` is borrowed; it counts the entries, as weights. *out is owned:
 * lk_latent_store_free, once every entry is returned. LK_E_NOMEM. */
lk_status lk_latent_store_new(struct lk_latent_store **out, struct lk_ledger *ledger, lk_err *err);
void lk_latent_store_free(struct lk_latent_store *store);

/* Bytes of the entries. */
uint64_t lk_latent_store_bytes(struct lk_latent_store *store);

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
