/* Which rows a layer holds whose body has a limit (recipe.h: keep), and what its policy knows of them.
 *
 * Heads may keep different tokens, but as many, so blocks stay what they are. A row that comes to a full
 * level takes the place of the row that goes, head by head: levels with a limit are in no order.
 *
 *     index        0       sinks         sinks + kept                       n
 *                  | sinks | kept, in slots | rows not there yet, in order  |
 *     pos, score   [n][n_head]
 *
 * K and V of a layer hold the same tokens, so both are settled together, once rows of both are there. */
#ifndef LK_CACHE_EVICT_H
#define LK_CACHE_EVICT_H

#include "base/err.h"
#include "base/ledger.h"
#include "recipe/policy.h"

struct lk_cache;
struct lk_kv;

struct lk_evict {
    struct lk_policy policy;
    int n_head;        /* KV heads; 0: the layer has no slots */
    bool needs_scores; /* is told of attention */
    int64_t n;         /* rows held by all levels */
    int32_t *pos;      /* [n][n_head], room for cap_pos */
    float *score;      /* [n][n_head] weights as lk_policy_needs says, where told */
    int64_t cap_pos, cap_score;
};

/* Is told of every row of a head that leaves a layer for good, with K and V [d_head] as they were kept (of a
 * prompt: as they were read). Heads of a layer may come from different threads. */
struct lk_evict_hook {
    void (*row)(void *user, int layer, int head, const float *k, const float *v); /* NULL: nobody */
    void *user;
};

/* Room for n rows; false where there is no memory. */
bool lk_evict_reserve(struct lk_evict *evict, struct lk_ledger *ledger, int64_t n);

/* Enter n rows behind the newest, at positions pos, pos + 1, ... There is room. */
void lk_evict_append(struct lk_evict *evict, int64_t n, int64_t pos);

/* Bytes of n rows. */
size_t lk_evict_bytes(const struct lk_evict *evict, int64_t n);

/* Make `to`, which has room, hold what `from` does. */
void lk_evict_copy(struct lk_evict *to, const struct lk_evict *from);

void lk_evict_free(struct lk_evict *evict, struct lk_ledger *ledger);

/* Both streams of a layer: lk_cache_age. Does nothing until K and V have the same tokens. */
lk_status lk_evict_age(struct lk_cache *cache, int layer, lk_err *err);

/* After lk_cache_alloc_prompt and before lk_cache_encode_prompt, for each head, by any thread: choose the rows that stay of a
 * prompt's. heard: [n_tok][n_head] weights as lk_policy_needs says, or NULL where nothing is heard. exact:
 * K and V as in lk_cache_encode_prompt. order: [n_tok], scratch of this head. */
void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_ranked *order);

#endif
