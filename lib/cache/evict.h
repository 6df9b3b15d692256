/* Eviction state of a layer whose body has a limit (recipe/recipe.h: keep): which rows it holds,
 * and the attention scores that its policy ranks them by.
 *
 * Heads may hold different tokens, but the same number of them, so the block format does not
 * change. Heads that share a latent of K or of V in the level hold the same tokens: they form a
 * unit, the smallest set of adjacent heads that is closed under the groups of both. A row that
 * arrives in a full level replaces the evicted row, unit by unit. Levels with a limit are therefore
 * unordered.
 *
 *     index        0       n_sink            n_sink + n_kept        n
 *                  | sinks | kept, unordered | newer rows, in order |
 *     pos, score   [n][n_head]
 *
 * K and V of a layer hold the same tokens. Both are aged together, once the rows of both are
 * stored. */
#ifndef LK_CACHE_EVICT_H
#define LK_CACHE_EVICT_H

#include "base/ledger.h"
#include "recipe/policy.h"

struct lk_evict {
    struct lk_policy policy;
    int n_head;        /* KV heads; 0: the layer does not evict */
    int unit;          /* heads that hold the same tokens; a divisor of n_head */
    bool needs_scores; /* the policy needs attention scores */
    bool adds_scores;  /* and steps add to them */
    int64_t n;         /* rows held by all levels */
    int32_t *pos;      /* [n][n_head] positions, room for cap_pos */
    float *score;      /* [n][n_head] scores as lk_policy_needed_scores says, if needs_scores */
    int64_t cap_pos, cap_score;
};

/* Called for every row of a head that is evicted, with K and V [d_head] as they were stored (of a
 * prompt: as they were computed). Latents are reconstructed; K is rotated as it is scored. Heads of
 * a layer may be reported by different threads. */
struct lk_evict_hook {
    /* NULL: none */
    void (*on_evict)(void *user, int layer, int head, const float *k, const float *v);
    void *user;
};

/* Where a device's evicted rows go instead of to the hook, in layers without latents: float
 * [n_layer][cap][n_head][d_head] of K and of V, in its memory. Moves of a list bring them there. */
struct lk_evict_room {
    uint64_t at[2];
    int cap;                  /* rows of a layer */
    int32_t *n;               /* [n_layer] rows that are there when the list has run */
    void (*take)(void *user); /* take all rows, after the list has run */
    void *user;               /* also the hook's */
};

/* Make room for n rows; false without memory. */
bool lk_evict_reserve(struct lk_evict *evict, struct lk_ledger *ledger, int64_t n);

/* Append n rows at positions pos, pos + 1, ... with scores of 0, or LK_NOT_REPLAYED. Room was
 * reserved. */
void lk_evict_append(struct lk_evict *evict, int64_t n, int64_t pos);

/* Bytes of n rows. */
size_t lk_evict_bytes(const struct lk_evict *evict, int64_t n);

/* Make `to`, where room was reserved, hold what `from` holds. */
void lk_evict_copy(struct lk_evict *to, const struct lk_evict *from);

void lk_evict_free(struct lk_evict *evict, struct lk_ledger *ledger);

#endif
