/* Blocks by size, so that a step of decoding takes and gives blocks without allocating.
 *
 * Blocks of one size come from slabs of some 16 KiB, for all streams of a cache together: what the
 * allocator adds to each piece of memory stays small, and what the ledger says is what the process
 * holds. A slab whose blocks are all free, and not wanted, goes back to the system. */
#ifndef LK_CACHE_POOL_H
#define LK_CACHE_POOL_H

#include "base/ledger.h"

#include <pthread.h>
#include <stdbool.h>

enum { LK_POOL_CLASSES = 256, LK_SLAB_BYTES = 1 << 14 };

struct lk_slab {
    char  *mem;    /* [n_block] blocks */
    size_t n_free;
};

struct lk_pool_class {
    size_t          size;    /* bytes of a block                                    */
    size_t          n_block; /* of a slab                                           */
    struct lk_slab *slab;    /* [n_slab] by address, room for cap                   */
    size_t          n_slab, cap;
    void           *free;    /* linked through each free block's first bytes        */
    size_t          n_free, n_wanted;
};

/* Safe from several threads, but for want and fill. */
struct lk_pool {
    struct lk_ledger    *ledger;
    pthread_mutex_t      lock;
    bool                 hold; /* keep every block that is given back */
    int                  n_class;
    struct lk_pool_class class[LK_POOL_CLASSES];
};

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger);
void lk_pool_destroy(struct lk_pool *pool);

/* Forget what was wanted; then want n more free blocks of `size` bytes; then have them. lk_pool_want
 * and lk_pool_fill return 0 when there is no memory (what was had stays). */
void lk_pool_want_none(struct lk_pool *pool);
int  lk_pool_want(struct lk_pool *pool, size_t size, size_t n);
int  lk_pool_fill(struct lk_pool *pool);

/* A block, 32-byte aligned (size is a multiple of 32); NULL when there is no memory. Its contents
 * are arbitrary. */
void *lk_pool_take(struct lk_pool *pool, size_t size);
void  lk_pool_give(struct lk_pool *pool, size_t size, void *block);

/* Give every slab of free blocks that is not wanted back to the system. */
void lk_pool_trim(struct lk_pool *pool);

#endif
