/* A pool of blocks by size, so that a decoding step allocates and frees blocks without malloc.
 *
 * A block has a number, not an address, because it may lie in the memory of a device. Blocks of one
 * size come from slabs of about pool->slab_bytes, for all layers of a cache together:
 *
 *     lk_block: | number of its slab | offset in the slab in units of LK_BLOCK_UNIT |
 *
 * What the pool knows about blocks is kept outside them. The overhead of the allocator stays small,
 * and the ledger's count is what the process holds. A slab goes back to the system when all its
 * blocks are free and not reserved.
 *
 * Pools of copied caches share slabs, under the same numbers. Blocks of a shared slab are
 * immutable: to write to one, call lk_pool_make_writable, which replaces it by a copy. Every pool
 * counts the blocks that it holds itself. Only the number of pools is shared, so pools that share
 * slabs can be used by different threads. The last pool that holds a block of the slab frees the
 * slab. */
#ifndef LK_CACHE_POOL_H
#define LK_CACHE_POOL_H

#include "base/ledger.h"
#include "device/device.h"

#include <pthread.h>
#include <stdbool.h>

/* LK_SLAB_BYTES: for blocks in the memory of the process. */
enum { LK_POOL_CLASSES = 256, LK_SLAB_BYTES = 1 << 14, LK_BLOCK_UNIT = 32 };

/* A block of an arena; 0: none. */
typedef uint32_t lk_block;

/* Bytes of tables for each block: its entry in a level, and room among the free blocks. */
enum { LK_BLOCK_TABLE_BYTES = 2 * sizeof(lk_block) };

/* Reference count of a shared slab. */
struct lk_slab_refs {
    atomic_size_t n_pool; /* pools that hold blocks of the slab */
};

struct lk_slab {
    char *mem;                 /* the blocks: an address, of a device if the arena has one. NULL:
                                  the number is unused */
    struct lk_slab_refs *refs; /* NULL: the slab belongs to this pool only */
    uint32_t n_held;           /* blocks that this pool's cache holds; the others are free, or
                                  unusable if the slab is shared. Of an unused number: the next
                                  unused one, or 0 */
    uint8_t class;             /* of lk_pool.class */
    bool drop;                 /* about to be freed */
};

/* Slabs by number, from 1 on: page[i] has the slabs [2^i, 2^(i + 1)). Pages do not move, so a
 * thread may use a block while another one adds a slab. */
struct lk_arena {
    struct lk_device *device; /* that has the slabs; NULL: they are memory of the process */
    atomic_int *fault;        /* the pool's (lk_pool_take_fault) */
    int shift;                /* bits of a block's offset in its slab */
    uint32_t n_given;         /* numbers of slabs that were given back: while it stays, a block's
                                 address does */
    struct lk_slab *page[32];
};

static inline struct lk_slab *lk_arena_slab(const struct lk_arena *arena, uint32_t number) {
    int page = 31 - __builtin_clz(number);
    return &arena->page[page][number - (1u << page)];
}

/* The address of a block, in the memory of the device if there is one. */
static inline char *lk_block_at(const struct lk_arena *arena, lk_block block) {
    uint32_t offset = block & ((1u << arena->shift) - 1);
    return lk_arena_slab(arena, block >> arena->shift)->mem + (size_t)offset * LK_BLOCK_UNIT;
}

/* The same; NULL: no block. */
static inline char *lk_block_address(const struct lk_arena *arena, lk_block block) {
    return block ? lk_block_at(arena, block) : NULL;
}

/* Copy a block of `size` bytes between arenas of the same device, or of the process. */
void lk_block_copy(const struct lk_arena *to_arena, lk_block to, const struct lk_arena *from_arena,
                   lk_block from, size_t size);

/* Let the arena have one block, which is memory of the caller; slab: room for its description. */
lk_block lk_arena_wrap(struct lk_arena *arena, struct lk_slab *slab, void *mem);

/* Blocks of one size. */
struct lk_pool_class {
    size_t size;      /* bytes of a block */
    uint32_t n_block; /* blocks of a slab */
    size_t n_slab;    /* slabs, also shared ones */
    size_t n_own;     /* blocks of slabs that are not shared */
    lk_block *free; /* [n_free] the one that is allocated next is the last; room for cap >= n_own */
    size_t n_free, cap, n_reserved;
};

/* Bytes of a slab: whole lines of 64, as ledgers count memory of the process. */
size_t lk_pool_slab_bytes(const struct lk_pool_class *class);

/* alloc, free, is_shared, is_reusable and make_writable are thread-safe; the others are not. */
struct lk_pool {
    struct lk_ledger *ledger;
    struct lk_ledger *slab_ledger; /* of the slabs; a device's own */
    pthread_mutex_t lock;
    size_t slab_bytes;
    bool keep_free;  /* do not return slabs to the system when blocks are freed */
    size_t n_shared; /* slabs shared with other pools */
    struct lk_arena arena;
    atomic_int fault;        /* lk_status of the last command on blocks that failed; 0: none */
    uint32_t n_slab, unused; /* numbers [1, n_slab] are or were used; the first unused one, or 0 */
    int n_class;
    struct lk_pool_class class[LK_POOL_CLASSES];
};

/* slab_bytes: a power of two. A pool has room for 2^32 units, or 128 GiB. */
void lk_pool_init(struct lk_pool *pool, size_t slab_bytes, struct lk_ledger *ledger);

/* Let the slabs of a new pool be memory of a device, counted in `ledger`. Both are borrowed. */
void lk_pool_use_device(struct lk_pool *pool, struct lk_device *device, struct lk_ledger *ledger);
void lk_pool_destroy(struct lk_pool *pool);

/* The statuses of commands on a device's blocks (copies, moves, uploads, downloads) are not passed
 * up one by one: the last failure is noted here. A function that reports success takes it first:
 * the status, or LK_OK, which it is again afterwards. */
static inline void lk_arena_note(const struct lk_arena *arena, lk_status status) {
    if (status) atomic_store(arena->fault, (int)status);
}
static inline lk_status lk_pool_take_fault(struct lk_pool *pool) {
    return (lk_status)atomic_exchange(&pool->fault, 0);
}

/* Forget all reservations. Reserve n more free blocks of `size` bytes. Allocate the slabs for what
 * is reserved. False if there is no memory (blocks allocated so far stay) or too many sizes. */
void lk_pool_unreserve(struct lk_pool *pool);
bool lk_pool_reserve(struct lk_pool *pool, size_t size, size_t n);
bool lk_pool_commit(struct lk_pool *pool);

/* A block with undefined contents, aligned to LK_BLOCK_UNIT. `size` is a multiple of that. 0
 * without memory. Freeing 0 does nothing. */
lk_block lk_pool_alloc(struct lk_pool *pool, size_t size);
void lk_pool_free(struct lk_pool *pool, lk_block block);

/* Let the empty pool `to` hold every block that `from` holds. Slabs of `from` that are free are
 * returned. False without memory: `to` is empty then, and `from` holds what it held. */
bool lk_pool_share(struct lk_pool *to, struct lk_pool *from);

/* Is the block, which `pool` holds, the same one in `other`? */
bool lk_pool_is_same(const struct lk_pool *pool, const struct lk_pool *other, lk_block block);

/* Bytes of the shared slabs of `pool` that `other` does not hold. */
uint64_t lk_pool_bytes_without(const struct lk_pool *pool, const struct lk_pool *other);

/* Is the block also held by another pool, so that writing needs a copy? */
bool lk_pool_is_shared(struct lk_pool *pool, lk_block block);

/* Can the block be allocated again after lk_pool_free? False if its slab was ever shared. */
bool lk_pool_is_reusable(struct lk_pool *pool, lk_block block);

/* The block for writing: itself, or a copy if it is shared, which is then freed. 0 without
 * memory. */
lk_block lk_pool_make_writable(struct lk_pool *pool, lk_block block);

/* Return every slab to the system that is free and not reserved. */
void lk_pool_trim(struct lk_pool *pool);

#endif
