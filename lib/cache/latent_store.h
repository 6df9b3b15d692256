/* What caches of one model share: compact copies of the bases that their recipes read, and K's
 * up-projection in the kernels' layout.
 *
 * Entries are created when the first cache needs them and freed with the last one. A copy holds the
 * components that a recipe reads. A cache that needs fewer uses a larger copy that exists. */
#ifndef LK_CACHE_LATENT_STORE_H
#define LK_CACHE_LATENT_STORE_H

#include "base/err.h"
#include "base/ledger.h"
#include "sidecar/basis.h"

struct lk_k_up;
struct lk_k_up_use;
struct lk_level;

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

#endif
