/* The cache of one session: K and V of every layer, each as rows in levels of encoded blocks.
 *
 *   lk_cache_prepare   finds memory for new rows; the only step that can fail for lack of it
 *   lk_cache_append    new rows enter the newest level, or the sinks
 *   lk_cache_age       rows that are old enough are re-encoded into older levels
 *
 * For a whole prompt, lk_cache_alloc_prompt and lk_cache_encode_prompt replace all three: each row
 * is encoded once, where it would end up by aging.
 *
 * append and age work on K or V of one layer, so different ones can be processed by different
 * threads. Only in a layer that evicts, aging works on both, once both have the same tokens.
 *
 * This header also includes those of the other parts that a cache's user calls. */
#ifndef LK_CACHE_CACHE_H
#define LK_CACHE_CACHE_H

#include "cache/account.h"
#include "cache/cache_memory.h"
#include "cache/kv.h"
#include "cache/move.h"
#include "cache/pool.h"
#include "cache/prompt_rows.h"

struct lk_cache {
    struct lk_ledger *ledger;
    struct lk_cache_shape shape;
    const struct lk_kernels *kernels; /* encode and decode rows */
    struct lk_pool pool;
    struct lk_kv (*kv)[2];  /* [n_layer][K, V] */
    struct lk_evict *evict; /* [n_layer] */
    struct lk_evict_hook evict_hook;
    struct lk_evict_room *evict_room; /* used while its user has the hook; NULL: none */
    struct lk_latent_store *latents;  /* of the shape, or the cache's own; NULL without a sidecar */
    int d_part[2];                    /* channels of the widest part of K, of V */
    float *rows[2];                   /* scratch of K, of V (kv.h: rows, out) */
    struct {
        uint64_t at; /* [n_row] rows of all heads on their way to the device; 0: none */
        int64_t n_row;
    } staging[2];
    char *copy[2]; /* of a block of the device; NULL: the blocks are in the process */
    /* Of a device that takes commands: room for LK_LIST_MOVES of them, for lists that start with K
     * or with V; and the sigma of all kv. */
    struct lk_device_move *command[2];
    uint64_t sigma_at;
    size_t sigma_bytes;
    uint64_t there_bytes; /* of what it shares with other caches there (latent_there.h) */
    struct lk_projecting *projecting[2]; /* move_project.h; NULL: no level has latents */
    int64_t reserved;                    /* tokens for which lk_cache_reserve has found memory */
};

/* K and V of all layers as one array: K of layer 0, V of layer 0, K of layer 1, ... */
static inline int lk_cache_n_kv(const struct lk_cache *cache) { return 2 * cache->shape.n_layer; }
static inline struct lk_kv *lk_cache_kv(const struct lk_cache *cache, int i) {
    return &cache->kv[i / 2][i % 2];
}

/* Create an empty cache; `ledger` is borrowed. LK_E_UNSUPPORTED if a codec cannot store such
 * heads, LK_E_ARG if the recipe and the sidecar do not match, LK_E_NOMEM. *out is owned:
 * lk_cache_free. */
lk_status lk_cache_new(struct lk_cache **out, const struct lk_recipe *recipe,
                       const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err);
void lk_cache_free(struct lk_cache *cache);

/* Like lk_cache_new, but for estimates only: rows cannot be projected. */
lk_status lk_cache_alloc(struct lk_cache **out, const struct lk_recipe *recipe,
                         const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err);

/* Free what rows are moved in: for a cache that is only copied, from or to. */
void lk_cache_drop_scratch(struct lk_cache *cache);

/* Forget every token. */
void lk_cache_clear(struct lk_cache *cache);

/* Append n rows x [n][n_head_kv][lk_cache_d_head] to K or V of a layer. x is not read, and may be
 * NULL, if the layer is not held here. LK_E_NOMEM without lk_cache_prepare. */
lk_status lk_cache_append(struct lk_cache *cache, int layer, enum lk_side side, const float *x,
                          int64_t n, lk_err *err);

/* The same for K and V of a layer, whose rows x[side] are in the memory of the cache's device. They
 * are read in the order of its commands. */
lk_status lk_cache_append_there(struct lk_cache *cache, int layer, const uint64_t x[2], int64_t n,
                                lk_err *err);

/* The first half of lk_cache_age: move rows into older levels, but drop none that the newest
 * queries see. For eager recipes, before attention. Does nothing in a layer whose body has a limit:
 * rows are evicted after the newest queries have seen them. */
lk_status lk_cache_encode(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err);

/* Move rows that are old enough into older levels. In a layer that evicts, K and V move
 * together. */
lk_status lk_cache_age(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err);

/* The same by a list of moves, which the caller runs, also after a failure. Threads with lists of
 * their own can age different layers. */
lk_status lk_cache_age_by(struct lk_moves *list, int layer, enum lk_side side, lk_err *err);

/* Report the queries that attend to a layer: q [n_tok][n_head][d_head]. Until channel statistics
 * are computed, the power of each channel is summed (lk_equalizer_calibrate). Afterwards this does
 * nothing. */
void lk_cache_observe(struct lk_cache *cache, int layer, const float *q, int n_tok, int n_head);

/* Does a layer still need queries for that? */
bool lk_cache_observes(const struct lk_cache *cache, int layer);

/* Can the newest tokens be removed until n_tok remain? Only while all of them lie in the newest
 * level and nothing was evicted that an earlier query would see. lk_cache_truncate removes them;
 * false leaves the cache unchanged. */
bool lk_cache_can_truncate(const struct lk_cache *cache, int64_t n_tok);
bool lk_cache_truncate(struct lk_cache *cache, int64_t n_tok);

/* ---- copies ----
 *
 * Copies of a cache share its blocks. Shared blocks are immutable; what a cache writes to is
 * replaced by its own copy (cache_memory.h). */

/* Make `to` hold what `from` holds. Both have the same recipe and shape, and ledgers with the same
 * `common`. A reservation of `from` ends. After LK_E_NOMEM `to` is empty. */
lk_status lk_cache_copy(struct lk_cache *to, struct lk_cache *from, lk_err *err);

/* ---- drafts ----
 *
 * Rows of drafts: tokens that are evaluated before it is known whether the text has them.
 *
 * The rows of a pass of drafts stay in the newest level until it is known how many of them are
 * right. So a pass ends before the first row of any layer ages, is evicted or leaves a sliding
 * window:
 *
 *     newest level  | exact rows . . . . . . . . . | pass    |        <- rows age when it is full
 *                                                    kept  dropped
 *
 * Dropping rows then leaves what evaluating only the kept tokens leaves, bit by bit. Besides rows,
 * a pass changes the power of the queries (cache/equalizer.h), until it is used. It is recorded
 * after each token of a pass. */

/* Maximum number of tokens of a pass of drafts: rows age in batches of 32 or more. */
enum { LK_DRAFT_TOKENS = 31 };

/* Why no pass of this cache can have drafts once its levels are full; static. NULL: passes can. */
const char *lk_cache_refuses_drafts(const struct lk_cache *cache);

/* How many of n more tokens fit into a pass of drafts now. 0: not even one. */
int64_t lk_cache_draftable(const struct lk_cache *cache, int64_t n);

/* Find memory for the power of the queries, before a pass of drafts. LK_E_NOMEM. */
lk_status lk_cache_prepare_drafts(struct lk_cache *cache, lk_err *err);

/* Drop the newest n_drop rows of the last pass, whose first n_keep > 0 tokens remain. The pass was
 * within lk_cache_draftable, and nothing happened to the cache since then. Memory that was reserved
 * for the rows is reserved again. */
void lk_cache_drop_drafts(struct lk_cache *cache, int64_t n_keep, int64_t n_drop);

#endif
