/* Free blocks by size, so that a step of decoding takes and gives blocks without allocating. */
#ifndef LK_CACHE_POOL_H
#define LK_CACHE_POOL_H

#include "base/ledger.h"

#include <pthread.h>
#include <stdbool.h>

enum { LK_POOL_CLASSES = 64 };

struct lk_pool_class {
    size_t size;             /* bytes of a block                                       */
    void  *free;             /* linked through each free block's first bytes           */
    size_t n_free, n_wanted; /* free blocks beyond n_wanted go back to the system      */
};

/* Safe from several threads. */
struct lk_pool {
    struct lk_ledger    *ledger;
    pthread_mutex_t      lock;
    int                  n_class;
    bool                 hold; /* keep every block that is given back */
    struct lk_pool_class class[LK_POOL_CLASSES];
};

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger);
void lk_pool_destroy(struct lk_pool *pool);

/* Forget what was wanted; then want n more free blocks of `size` bytes; then have them. lk_pool_fill
 * returns 0 when there is no memory (what was had stays). */
void lk_pool_want_none(struct lk_pool *pool);
int  lk_pool_want(struct lk_pool *pool, size_t size, size_t n);
int  lk_pool_fill(struct lk_pool *pool);

/* A block; NULL when there is no memory. Its contents are arbitrary. */
void *lk_pool_take(struct lk_pool *pool, size_t size);
void  lk_pool_give(struct lk_pool *pool, size_t size, void *block);

/* Give every free block that is not wanted back to the system. */
void lk_pool_trim(struct lk_pool *pool);

#endif
