/* The up-projection of K before RoPE, prepared for scoring.
 *
 * For each KV head these are the rows of up: d_head vectors of d_part channels, in the order of
 * RoPE's pairs (cache/rope.h), transformed into
 * the domain of the level's codec and prepared as queries to its codes. Only the forms that these
 * codes' kernels read are kept. The codec's statistics are part of its domain, so this is done
 * once they are known, and a session with such a codec has its own copy. */
#ifndef LK_CACHE_K_UP_H
#define LK_CACHE_K_UP_H

#include "cache/kv.h"

struct lk_k_up {
    struct lk_queries up; /* n_q = d_head; arrays that are not kept are NULL */
    char *mem;            /* memory of the arrays; the first head's is that of all heads */
    size_t bytes;         /* bytes per head */
};

/* Allocate for a level if its codec needs it; otherwise do nothing. LK_E_NOMEM. */
lk_status lk_k_up_new(struct lk_kv *kv, int level, const struct lk_cache_shape *shape,
                      struct lk_ledger *ledger, lk_err *err);
void lk_k_up_free(struct lk_level *level, int n_head_kv, struct lk_ledger *ledger);

/* Prepare the heads of one part. Does nothing if the level has no k_up. */
void lk_k_up_prepare(struct lk_kv *kv, int level, int part);

#endif
