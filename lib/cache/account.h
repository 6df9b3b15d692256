/* Accounting: how many bytes a cache holds, and how many it will need. */
#ifndef LK_CACHE_ACCOUNT_H
#define LK_CACHE_ACCOUNT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct lk_cache;
struct lk_cache_shape;
struct lk_recipe;

/* Bytes by content. Their sum is the ledger's count, borrowed bytes included. */
struct lk_cache_bytes {
    uint64_t code, scale, exact, padding;
};
struct lk_cache_bytes lk_cache_count_bytes(const struct lk_cache *cache);

/* Bytes of full blocks whose rows never leave and are never replaced. Copies of the cache share
 * them for their whole life. */
uint64_t lk_cache_immutable_bytes(const struct lk_cache *cache);

/* Bytes of all rows that a token attends to, on average over the shares of divided rows.
 * They follow from counts, and are equal in all processes. */
uint64_t lk_cache_row_bytes(const struct lk_cache *cache);

/* What an f16 cache would need for n_tok tokens, without blocks and padding. */
uint64_t lk_cache_f16_bytes(const struct lk_cache_shape *shape, int64_t n_tok);

/* Maximum widths, for attention's scratch: channels of any level's part, rank of V's latents. */
struct lk_cache_widths {
    int part, latent;
};
struct lk_cache_widths lk_cache_max_widths(const struct lk_cache *cache);

/* Bytes of scratch while policies choose among a prompt's n_tok rows: the rows' attention scores,
 * and their ranking (struct lk_scored_row). 0 if no policy needs it. */
struct lk_evict_scratch {
    size_t attn_scores, ranked;
};
struct lk_evict_scratch lk_evict_scratch(const struct lk_cache *cache, int64_t n_tok);

/* What a cache of this recipe and shape will need for n_tok tokens. Uses the same arithmetic as
 * the cache itself, without rows. Exact for a prompt, apart from room to grow. Tokens that arrive
 * one by one need the same, except that a policy's limit in percent may keep fewer rows, and
 * sliding windows shorter than LK_CALIBRATE_ROWS may stay exact for longer. LK_E_UNSUPPORTED as
 * lk_cache_new, or if the recipe needs too many block sizes. */
struct lk_cache_needs {
    uint64_t cache;  /* bytes held then */
    uint64_t device; /* of those in the memory of shape->device, in whole slabs, with a slab more
                         of each block size: what is held is never more, and by less than two
                         slabs of each size less */
    uint64_t device_scratch; /* more there, of the cache's own: statistics, room for projections */
    uint64_t device_packets; /* and what calls of attention read besides rows, of all layers
                                (attention/device_call.h): at least */
    uint64_t device_shared;  /* and bases, which the sessions of a model share (latent_there.h) */
    int n_range;             /* ranges that a call leaves there (lk_attn_device_ranges) */
    uint64_t scratch;        /* of the cache's own */
    uint64_t latents; /* of the sidecar, shared by the sessions of this recipe (latent_levels.h) */
    uint64_t derived; /* of scratch: K's up-projection with the session's own statistics */
    bool evicts;      /* a level has a policy */
    struct lk_evict_scratch evict_scratch; /* during the prefill of such a prompt */
    struct lk_cache_widths width;
};
lk_status lk_cache_estimate(const struct lk_recipe *recipe, const struct lk_cache_shape *shape,
                            int64_t n_tok, struct lk_cache_needs *out, lk_err *err);

#endif
