/* K or V rows of a layer outside a cache, for tests. */
#ifndef LK_TESTS_SUPPORT_KV_H
#define LK_TESTS_SUPPORT_KV_H

#include "cache/cache.h"

/* K or V as one f16 block that holds x [n][n_head][d_head]. Its memory: free(*memory). */
struct lk_kv exact_rows(enum lk_side side, int n_head, int d_head, const float *x, int n,
                        void **memory);

#endif
