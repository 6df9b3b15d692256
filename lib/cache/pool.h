/* A pool of blocks by size, so that a decoding step allocates and frees blocks without malloc.
 *
 * Blocks of one size come from slabs of about 16 KiB, for all layers of a cache together. The
 * overhead of the allocator stays small, and the ledger's count is what the process holds. A slab
 * goes back to the system when all its blocks are free and not reserved.
 *
 * Pools of copied caches share slabs. Blocks of a shared slab are immutable: to write to one, call
 * lk_pool_make_writable, which replaces it by a copy. Every pool counts the blocks that it holds
 * itself. Only the number of pools is shared, so pools that share slabs can be used by different
 * threads. The last pool that holds a block of the slab frees the slab. */
#ifndef LK_CACHE_POOL_H
#define LK_CACHE_POOL_H

#include "base/ledger.h"

#include <pthread.h>
#include <stdbool.h>

enum { LK_POOL_CLASSES = 256, LK_SLAB_BYTES = 1 << 14 };

/* Reference count of a shared slab. */
struct lk_slab_refs {
    atomic_size_t n_pool; /* pools that hold blocks of the slab */
};

struct lk_slab {
    char *mem;                 /* [n_block] blocks */
    size_t n_held;             /* blocks that this pool's cache holds; the others are free, or
                                  unusable if the slab is shared */
    struct lk_slab_refs *refs; /* NULL: the slab belongs to this pool only */
    bool drop;                 /* about to be freed */
};

/* Blocks of one size. */
struct lk_pool_class {
    size_t size;          /* bytes of a block */
    size_t n_block;       /* blocks of a slab */
    struct lk_slab *slab; /* [n_slab] by address, room for cap */
    size_t n_slab, cap;
    void *free; /* list linked through the first bytes of each free block */
    size_t n_free, n_reserved;
};

/* alloc, free, is_shared, is_reusable and make_writable are thread-safe; the others are not. */
struct lk_pool {
    struct lk_ledger *ledger;
    pthread_mutex_t lock;
    bool keep_free;  /* do not return slabs to the system when blocks are freed */
    size_t n_shared; /* slabs shared with other pools */
    int n_class;
    struct lk_pool_class class[LK_POOL_CLASSES];
};

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger);
void lk_pool_destroy(struct lk_pool *pool);

/* Forget all reservations. Reserve n more free blocks of `size` bytes. Allocate the slabs for what
 * is reserved. False if there is no memory (blocks allocated so far stay) or too many sizes. */
void lk_pool_unreserve(struct lk_pool *pool);
bool lk_pool_reserve(struct lk_pool *pool, size_t size, size_t n);
bool lk_pool_commit(struct lk_pool *pool);

/* A block with undefined contents, 32-byte aligned (size is a multiple of 32). NULL without
 * memory. Freeing NULL does nothing. */
void *lk_pool_alloc(struct lk_pool *pool, size_t size);
void lk_pool_free(struct lk_pool *pool, size_t size, void *block);

/* Let the empty pool `to` hold every block that `from` holds. Slabs of `from` that are free are
 * returned. False without memory: `to` is empty then, and `from` holds what it held. */
bool lk_pool_share(struct lk_pool *to, struct lk_pool *from);

/* Bytes of the shared slabs of `pool` that `other` does not hold. */
uint64_t lk_pool_bytes_without(const struct lk_pool *pool, const struct lk_pool *other);

/* Is the block also held by another pool, so that writing needs a copy? */
bool lk_pool_is_shared(struct lk_pool *pool, size_t size, const void *block);

/* Can the block be allocated again after lk_pool_free? False if its slab was ever shared. */
bool lk_pool_is_reusable(struct lk_pool *pool, size_t size, const void *block);

/* The block for writing: itself, or a copy if it is shared, which is then freed. NULL without
 * memory. */
void *lk_pool_make_writable(struct lk_pool *pool, size_t size, void *block);

/* Return every slab to the system that is free and not reserved. */
void lk_pool_trim(struct lk_pool *pool);

#endif
