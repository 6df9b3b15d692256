/* Whole prompts: stores all rows of a prompt at once. Each row is encoded only once, directly in
 * the level where it would end up by aging. */
#ifndef LK_CACHE_PROMPT_ROWS_H
#define LK_CACHE_PROMPT_ROWS_H

#include "base/err.h"
#include "codec/codec.h"

#include <stdbool.h>

struct lk_cache;
struct lk_kv;

enum { LK_OBSERVE_ROWS = 512 }; /* rows of a prompt, at most, that channel statistics come from */

/* Allocate the blocks for a prompt of n_tok rows in an empty layer, and set the counts to what
 * appending the prompt and aging it would leave. After LK_E_NOMEM the cache must be cleared. */
lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err);

/* Then encode the prompt's rows of one head, and the latents of a group with the group's first
 * head; on a device, everything with head 0. Heads and sides may be encoded in any order and by any
 * threads. exact: one level of f16 rows of positions 0 to n_tok - 1. Channel statistics are
 * computed from the first LK_OBSERVE_ROWS rows after the sinks, and from queries observed
 * before. */
void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact);

/* The same with channel statistics that are there already. Of `exact`, only the rows that the cache
 * keeps are read. */
void lk_cache_encode_calibrated(struct lk_cache *cache, int layer, enum lk_side side, int head,
                                const struct lk_kv *exact);

/* Exact rows of a prompt in the memory of the cache's device, which takes commands: f16
 * [n_tok][n_head][d_head] from position 0 on, `stride` numbers from row to row. */
struct lk_rows_there {
    uint64_t at; /* 0: they are not there */
    size_t stride;
};

/* Encode such rows of all heads. They are read in the order of the device's commands. No level has
 * an eviction policy. first: the rows that channel statistics come from, as `exact` above, if
 * lk_cache_needs_first says that there are any to compute; else NULL. */
void lk_cache_encode_there(struct lk_cache *cache, int layer, enum lk_side side,
                           struct lk_rows_there rows, const struct lk_kv *first);

/* How many of the first rows of a prompt of n_tok rows that is: 0 if no statistics are computed. */
int64_t lk_cache_needs_first(const struct lk_cache *cache, int layer, enum lk_side side,
                             int64_t n_tok);

/* A cache of the first rows of the same prompt, as if only these had been prefilled. Full blocks of
 * the oldest levels hold the same rows in both. They are left out of `part` at first, so it is not
 * usable yet:
 *
 *   lk_cache_alloc_part    after lk_cache_alloc_prompt of a layer: allocate its other blocks
 *   lk_cache_encode_part   after lk_cache_encode_prompt of the same head: encode these. rows:
 *                          where they are; if they are in RAM, `exact` has them
 *   lk_cache_join_part     after all layers: make `to` share the left out blocks with `whole`, and
 *                          copy the others
 *
 * No layer has a level with an eviction policy. False without memory; `to` is empty then. */
bool lk_cache_alloc_part(struct lk_cache *part, const struct lk_cache *whole, int layer,
                         int64_t n_tok);
void lk_cache_encode_part(struct lk_cache *part, struct lk_cache *whole, int layer,
                          enum lk_side side, int head, struct lk_rows_there rows,
                          const struct lk_kv *exact);
bool lk_cache_join_part(struct lk_cache *to, struct lk_cache *whole, const struct lk_cache *part);

/* Call `visit` with each block that a part holds itself in its first n_layer layers, in an order
 * that depends on the counts alone. They are in RAM. */
void lk_cache_part_blocks(const struct lk_cache *part, int n_layer,
                          void (*visit)(void *user, void *block, size_t n), void *user);

#endif
