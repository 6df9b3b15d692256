/* Blocks by size, so that a step of decoding takes and gives blocks without allocating.
 *
 * Blocks of one size come from slabs of some 16 KiB, for all streams of a cache together: what the
 * allocator adds to each piece of memory stays small, and what the ledger says is what the process
 * holds. A slab whose blocks are all free, and not wanted, goes back to the system.
 *
 * Pools of caches that were made like one another share slabs. What such a slab holds nobody changes any
 * more: who wants to write to a block of it has lk_pool_make_writable put a copy in its place. Every pool counts the
 * blocks that it holds itself, and only the number of pools is common, so that pools that share may be used
 * by different threads. The last one that holds a block of the slab frees it. */
#ifndef LK_CACHE_POOL_H
#define LK_CACHE_POOL_H

#include "base/ledger.h"

#include <pthread.h>
#include <stdbool.h>

enum { LK_POOL_CLASSES = 256, LK_SLAB_BYTES = 1 << 14 };

struct lk_shared {
    atomic_size_t n_pool; /* that hold blocks of the slab */
};

struct lk_slab {
    char *mem;     /* [n_block] blocks */
    size_t n_held; /* blocks that this pool's cache has; the others are free, or, where the
                                 slab is shared, of no use to this pool */
    struct lk_shared *shared; /* NULL: the slab is this pool's alone */
    bool spare;               /* about to be dropped */
};

struct lk_pool_class {
    size_t size;          /* bytes of a block */
    size_t n_block;       /* of a slab */
    struct lk_slab *slab; /* [n_slab] by address, room for cap */
    size_t n_slab, cap;
    void *free; /* linked through each free block's first bytes */
    size_t n_free, n_wanted;
};

/* Safe from several threads, but for want, fill, trim and borrow. */
struct lk_pool {
    struct lk_ledger *ledger;
    pthread_mutex_t lock;
    bool hold;       /* keep every block that is given back */
    size_t n_shared; /* slabs shared with other pools */
    int n_class;
    struct lk_pool_class class[LK_POOL_CLASSES];
};

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger);
void lk_pool_destroy(struct lk_pool *pool);

/* Forget what was wanted; then want n more free blocks of `size` bytes; then have them. lk_pool_reserve
 * and lk_pool_fill return 0 when there is no memory (what was had stays). */
void lk_pool_reserve_none(struct lk_pool *pool);
int lk_pool_reserve(struct lk_pool *pool, size_t size, size_t n);
int lk_pool_fill(struct lk_pool *pool);

/* A block, 32-byte aligned (size is a multiple of 32); NULL when there is no memory. Its contents
 * are arbitrary. */
void *lk_pool_alloc(struct lk_pool *pool, size_t size);
void lk_pool_free(struct lk_pool *pool, size_t size, void *block);

/* Let the empty pool `to` hold every block that `from` holds, free blocks of which are given back. 0 when there
 * is no memory: `to` is empty then, and `from` holds what it held. */
int lk_pool_share(struct lk_pool *to, struct lk_pool *from);

/* Is the block another pool's, too, so that writing takes a copy? Is it free to be taken again when it is given
 * back? Not where its slab was ever shared. */
bool lk_pool_is_shared(struct lk_pool *pool, size_t size, const void *block);
bool lk_pool_is_reusable(struct lk_pool *pool, size_t size, const void *block);

/* The block, to be written to: itself, or a copy where it is shared, which is given back then. NULL when there
 * is no memory. */
void *lk_pool_make_writable(struct lk_pool *pool, size_t size, void *block);

/* Give every slab of free blocks that is not wanted back to the system. */
void lk_pool_trim(struct lk_pool *pool);

#endif
