/* What levels of latents have in the memory of a device that takes commands: copies of their bases,
 * for projecting rows and for restoring them, and what the device's fast kernels read instead
 * (device/latents.h). It is shared by the caches of a model: made for the first one, freed with the
 * last one, counted as weights, and against the limit of each cache. */
#ifndef LK_CACHE_LATENT_THERE_H
#define LK_CACHE_LATENT_THERE_H

#include "base/err.h"
#include "base/ledger.h"
#include "cache/kv.h"

#include <pthread.h>

struct lk_cache;
struct lk_there;

/* The contents of devices, by key. */
struct lk_there_list {
    struct lk_ledger *ledger; /* of the entries themselves */
    pthread_mutex_t lock;
    struct lk_there *first;
};
void lk_there_init(struct lk_there_list *list, struct lk_ledger *ledger);
void lk_there_destroy(struct lk_there_list *list);

/* Give all levels of latents, whose bases are open (latent_levels.h), what they need on the cache's
 * device. list: of the store that the bases are from. After LK_E_NOMEM, close. */
lk_status lk_latents_there_open(struct lk_there_list *list, struct lk_cache *cache, lk_err *err);
/* Bytes that lk_latents_there_open will allocate if the list is empty, for a cache that was not
 * opened (lk_cache_alloc). The device takes commands. */
uint64_t lk_latents_there_estimate(const struct lk_cache *cache, const struct lk_device *device);
void lk_latents_there_close(struct lk_there_list *list, struct lk_cache *cache);

#endif
