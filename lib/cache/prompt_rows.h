/* Whole prompts: stores all rows of a prompt at once. Each row is encoded only once, directly in
 * the level where it would end up by aging. */
#ifndef LK_CACHE_PROMPT_ROWS_H
#define LK_CACHE_PROMPT_ROWS_H

#include "base/err.h"
#include "codec/codec.h"

struct lk_cache;
struct lk_kv;

enum { LK_OBSERVE_ROWS = 512 }; /* rows of a prompt, at most, that channel statistics come from */

/* Allocate the blocks for a prompt of n_tok rows in an empty layer, and set the counts to what
 * appending the prompt and aging it would leave. After LK_E_NOMEM the cache must be cleared. */
lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err);

/* Then encode the prompt's rows of one head, and the latents of a group with the group's first
 * head. Heads and sides may be encoded in any order and by any threads. exact: one level of f16
 * rows of positions 0 to n_tok - 1. Channel statistics are computed from the first LK_OBSERVE_ROWS
 * rows after the sinks, and from queries observed before. */
void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact);

#endif
