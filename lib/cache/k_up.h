/* What brings latents of K from before RoPE back: for each KV head the rows of up, d_head vectors of d_part,
 * brought into the domain of the level's codec and prepared as queries to its codes, of which only that is kept
 * which these codes' scores read. Made once, when the codec's statistics are known, since these are part of the
 * domain: it is a session's own wherever the codec has sigma. */
#ifndef LK_CACHE_K_UP_H
#define LK_CACHE_K_UP_H

#include "cache/cache.h"

struct lk_k_up {
    struct lk_queries up; /* n_q = d_head; NULL for the arrays that are not kept */
    char *mem;            /* of up's arrays; of all heads, in the first one */
    size_t bytes;         /* of a head */
};

/* Memory for a level that needs it, and, where the codec takes no statistics, what it holds. */
lk_status lk_k_up_new(struct lk_kv *kv, int level, const struct lk_cache_shape *shape,
                      struct lk_ledger *ledger, lk_err *err);
void lk_k_up_free(struct lk_level *level, int n_head_kv, struct lk_ledger *ledger);

/* Prepare the heads of one part. Nothing where the level needs none. */
void lk_k_up_prepare(struct lk_kv *kv, int level, int part, int d_head);

#endif
