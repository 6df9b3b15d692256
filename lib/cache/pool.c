/* A pool of blocks by size: slabs, free blocks, and slabs shared with other pools. */
#include "cache/pool.h"

#include <string.h>

void lk_pool_init(struct lk_pool *pool, size_t slab_bytes, struct lk_ledger *ledger) {
    memset(pool, 0, sizeof *pool);
    pool->ledger = pool->slab_ledger = ledger;
    pool->slab_bytes = slab_bytes;
    pool->arena.fault = &pool->fault;
    while ((size_t)LK_BLOCK_UNIT << pool->arena.shift < slab_bytes) pool->arena.shift++;
    pthread_mutex_init(&pool->lock, NULL);
}

void lk_pool_use_device(struct lk_pool *pool, struct lk_device *device, struct lk_ledger *ledger) {
    pool->arena.device = device;
    pool->slab_ledger = ledger;
}

lk_block lk_arena_wrap(struct lk_arena *arena, struct lk_slab *slab, void *mem) {
    *slab = (struct lk_slab){.mem = mem};
    *arena = (struct lk_arena){.page = {slab}};
    return 1; /* offsets have no bits, so this is slab 1 */
}

void lk_block_copy(const struct lk_arena *to_arena, lk_block to, const struct lk_arena *from_arena,
                   lk_block from, size_t size) {
    struct lk_device *device = to_arena->device;
    char *target = lk_block_at(to_arena, to), *source = lk_block_at(from_arena, from);
    if (device)
        lk_arena_note(to_arena, device->call->copy(device, (uint64_t)(uintptr_t)target,
                                                   (uint64_t)(uintptr_t)source, size, NULL));
    else
        memcpy(target, source, size);
}

/* ---- slabs by number ---- */

static struct lk_slab *slab_of(const struct lk_pool *pool, lk_block block) {
    return lk_arena_slab(&pool->arena, block >> pool->arena.shift);
}

size_t lk_pool_slab_bytes(const struct lk_pool_class *class) {
    enum { LINE = 64 };
    return (class->n_block * class->size + LINE - 1) / LINE * LINE;
}

/* Memory of a slab: of the process, or of the device. `ledger`: the one that counts it, the pool's
 * or the common one. */
static char *alloc_slab(struct lk_pool *pool, size_t size) {
    struct lk_device *device = pool->arena.device;
    uint64_t at = 0;
    if (!device) return lk_alloc(pool->ledger, LK_FOR_CACHE, size);
    if (!lk_ledger_add(pool->slab_ledger, LK_FOR_CACHE, size)) return NULL;
    if (device->call->alloc(device, size, &at, NULL))
        lk_ledger_remove(pool->slab_ledger, LK_FOR_CACHE, size);
    return (char *)(uintptr_t)at;
}

static void release_slab(struct lk_pool *pool, struct lk_ledger *ledger, char *mem, size_t size) {
    struct lk_device *device = pool->arena.device;
    if (!device) {
        lk_release(ledger, LK_FOR_CACHE, mem, size);
    } else if (mem) {
        device->call->free(device, (uint64_t)(uintptr_t)mem, size);
        lk_ledger_remove(ledger, LK_FOR_CACHE, size);
    }
}

static size_t page_bytes(int page) { return sizeof(struct lk_slab) << page; }

/* Make room for the slabs up to this number. */
static bool grow_pages(struct lk_pool *pool, uint32_t number) {
    if ((uint64_t)number << pool->arena.shift > UINT32_MAX) return false;
    for (int i = 0; number >> i; i++) {
        if (!pool->arena.page[i])
            pool->arena.page[i] = lk_alloc(pool->ledger, LK_FOR_CACHE, page_bytes(i));
        if (!pool->arena.page[i]) return false;
    }
    return true;
}

/* An unused number; 0 without memory. The caller uses it. */
static uint32_t take_number(struct lk_pool *pool) {
    uint32_t number = pool->unused;
    if (number)
        pool->unused = lk_arena_slab(&pool->arena, number)->n_held;
    else if (grow_pages(pool, pool->n_slab + 1))
        number = ++pool->n_slab;
    return number;
}

static void give_number(struct lk_pool *pool, uint32_t number) {
    *lk_arena_slab(&pool->arena, number) = (struct lk_slab){.n_held = pool->unused};
    pool->unused = number;
    pool->arena.n_given++;
}

/* ---- blocks by size ---- */

static struct lk_pool_class *find_class(struct lk_pool *pool, size_t size) {
    for (int i = 0; i < pool->n_class; i++)
        if (pool->class[i].size == size) return &pool->class[i];
    if (pool->n_class == LK_POOL_CLASSES) return NULL;
    struct lk_pool_class *class = &pool->class[pool->n_class++];
    *class = (struct lk_pool_class){.size = size,
                                    .n_block = (uint32_t)((pool->slab_bytes + size - 1) / size)};
    return class;
}

static bool add_slab(struct lk_pool *pool, struct lk_pool_class *class) {
    size_t n_own = class->n_own + class->n_block, unit = sizeof *class->free;
    if (n_own > class->cap) {
        size_t cap = n_own + n_own / 8 + 4;
        if (!lk_grow(pool->ledger, LK_FOR_CACHE, (void **)&class->free, class->cap * unit,
                     cap * unit))
            return false;
        class->cap = cap;
    }
    char *mem = alloc_slab(pool, lk_pool_slab_bytes(class));
    uint32_t number = mem ? take_number(pool) : 0;
    if (!number) {
        release_slab(pool, pool->slab_ledger, mem, lk_pool_slab_bytes(class));
        return false;
    }
    *lk_arena_slab(&pool->arena, number) =
        (struct lk_slab){.mem = mem, .class = (uint8_t)(class - pool->class)};
    class->n_slab++;
    class->n_own = n_own;
    for (size_t i = class->n_block; i-- > 0;)
        class->free[class->n_free++] =
            (number << pool->arena.shift) + (lk_block)(i * class->size / LK_BLOCK_UNIT);
    return true;
}

/* Forget the free blocks of slabs that are about to be freed, or shared. */
static void forget_free_blocks(struct lk_pool *pool, struct lk_pool_class *class) {
    size_t n = 0;
    for (size_t i = 0; i < class->n_free; i++) {
        const struct lk_slab *slab = slab_of(pool, class->free[i]);
        if (!slab->drop && !slab->refs) class->free[n++] = class->free[i];
    }
    class->n_free = n;
}

/* Free a slab of this pool whose blocks are no longer among the free ones. */
static void free_slab(struct lk_pool *pool, uint32_t number) {
    struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
    struct lk_pool_class *class = &pool->class[slab->class];
    release_slab(pool, pool->slab_ledger, slab->mem, lk_pool_slab_bytes(class));
    class->n_slab--;
    class->n_own -= class->n_block;
    give_number(pool, number);
}

/* n_free: free blocks that remain of the class. */
static bool is_droppable(const struct lk_pool_class *class, const struct lk_slab *slab,
                         size_t n_free) {
    return !slab->refs && slab->n_held == 0 && n_free >= class->n_reserved + class->n_block;
}

/* Give up a shared slab after its last block of this pool was freed. */
static void release_shared_slab(struct lk_pool *pool, uint32_t number) {
    struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
    struct lk_pool_class *class = &pool->class[slab->class];
    lk_ledger_return(pool->slab_ledger, lk_pool_slab_bytes(class));
    if (atomic_fetch_sub(&slab->refs->n_pool, 1) == 1) {
        release_slab(pool, pool->slab_ledger->common, slab->mem, lk_pool_slab_bytes(class));
        lk_release(pool->ledger->common, LK_FOR_CACHE, slab->refs, sizeof *slab->refs);
    }
    class->n_slab--;
    pool->n_shared--;
    give_number(pool, number);
}

void lk_pool_unreserve(struct lk_pool *pool) {
    pool->keep_free = false;
    for (int i = 0; i < pool->n_class; i++) pool->class[i].n_reserved = 0;
}

bool lk_pool_reserve(struct lk_pool *pool, size_t size, size_t n) {
    if (n == 0) return true;
    struct lk_pool_class *class = find_class(pool, size);
    if (!class) return false;
    class->n_reserved += n;
    return true;
}

bool lk_pool_commit(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++)
        while (pool->class[i].n_free < pool->class[i].n_reserved)
            if (!add_slab(pool, &pool->class[i])) return false;
    return true;
}

static lk_block alloc_block(struct lk_pool *pool, struct lk_pool_class *class) {
    if (!class || (class->n_free == 0 && !add_slab(pool, class))) return 0;
    lk_block block = class->free[--class->n_free];
    slab_of(pool, block)->n_held++;
    if (class->n_reserved) class->n_reserved--;
    return block;
}

static void free_block(struct lk_pool *pool, lk_block block) {
    struct lk_slab *slab = slab_of(pool, block);
    struct lk_pool_class *class = &pool->class[slab->class];
    uint32_t number = block >> pool->arena.shift;
    slab->n_held--;
    if (slab->refs) {
        if (slab->n_held == 0) release_shared_slab(pool, number);
        return;
    }
    class->free[class->n_free++] = block;
    if (pool->keep_free || !is_droppable(class, slab, class->n_free)) return;
    slab->drop = true;
    forget_free_blocks(pool, class);
    free_slab(pool, number);
}

lk_block lk_pool_alloc(struct lk_pool *pool, size_t size) {
    pthread_mutex_lock(&pool->lock);
    lk_block block = alloc_block(pool, find_class(pool, size));
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void lk_pool_free(struct lk_pool *pool, lk_block block) {
    if (!block) return;
    pthread_mutex_lock(&pool->lock);
    free_block(pool, block);
    pthread_mutex_unlock(&pool->lock);
}

void lk_pool_trim(struct lk_pool *pool) {
    size_t n_free[LK_POOL_CLASSES];
    bool any = false;
    for (int i = 0; i < pool->n_class; i++) {
        const struct lk_pool_class *class = &pool->class[i];
        n_free[i] = class->n_free;
        any |= class->n_free >= class->n_reserved + class->n_block;
    }
    if (!any) return;
    for (uint32_t number = pool->n_slab; number > 0; number--) {
        struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
        if (!slab->mem) continue;
        const struct lk_pool_class *class = &pool->class[slab->class];
        slab->drop = is_droppable(class, slab, n_free[slab->class]);
        if (slab->drop) n_free[slab->class] -= class->n_block;
    }
    for (int i = 0; i < pool->n_class; i++)
        if (n_free[i] < pool->class[i].n_free) forget_free_blocks(pool, &pool->class[i]);
    for (uint32_t number = pool->n_slab; number > 0; number--)
        if (lk_arena_slab(&pool->arena, number)->drop) free_slab(pool, number);
}

/* Give up all slabs. */
static void clear(struct lk_pool *pool) {
    for (uint32_t number = pool->n_slab; number > 0; number--) {
        const struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
        if (slab->refs)
            release_shared_slab(pool, number);
        else if (slab->mem)
            free_slab(pool, number);
    }
    for (int i = 0; i < pool->n_class; i++) pool->class[i].n_free = 0;
    pool->n_slab = pool->unused = 0;
}

void lk_pool_destroy(struct lk_pool *pool) {
    clear(pool);
    for (int i = 0; i < pool->n_class; i++)
        lk_release(pool->ledger, LK_FOR_CACHE, pool->class[i].free,
                   pool->class[i].cap * sizeof *pool->class[i].free);
    for (int i = 0; i < 32; i++)
        lk_release(pool->ledger, LK_FOR_CACHE, pool->arena.page[i],
                   pool->arena.page[i] ? page_bytes(i) : 0);
    pthread_mutex_destroy(&pool->lock);
}

/* ---- slabs of several pools ---- */

/* Make one of the pool's own slabs shared. */
static bool share_slab(struct lk_pool *pool, struct lk_slab *slab) {
    struct lk_pool_class *class = &pool->class[slab->class];
    struct lk_ledger *common = pool->ledger->common;
    struct lk_slab_refs *refs = common ? lk_alloc(common, LK_FOR_CACHE, sizeof *refs) : NULL;
    if (!refs) return false;
    if (!lk_ledger_share(pool->slab_ledger, LK_FOR_CACHE, lk_pool_slab_bytes(class))) {
        lk_release(common, LK_FOR_CACHE, refs, sizeof *refs);
        return false;
    }
    refs->n_pool = 1;
    slab->refs = refs;
    class->n_own -= class->n_block;
    pool->n_shared++;
    return true;
}

/* Make all slabs of a pool shared that are not yet. */
static bool share_slabs(struct lk_pool *pool) {
    bool ok = true;
    for (uint32_t number = 1; ok && number <= pool->n_slab; number++) {
        struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
        if (slab->mem && !slab->refs) ok = share_slab(pool, slab);
    }
    for (int i = 0; i < pool->n_class; i++) forget_free_blocks(pool, &pool->class[i]);
    return ok;
}

/* Let `to` hold a shared slab of another pool, whose blocks have `size` bytes, under this number.
 * False without memory. */
static bool join_slab(struct lk_pool *to, uint32_t number, const struct lk_slab *slab,
                      size_t size) {
    struct lk_pool_class *class = find_class(to, size);
    if (!class || !lk_ledger_borrow(to->slab_ledger, lk_pool_slab_bytes(class))) return false;
    struct lk_slab *own = lk_arena_slab(&to->arena, number);
    *own = *slab;
    own->class = (uint8_t)(class - to->class);
    atomic_fetch_add(&slab->refs->n_pool, 1);
    class->n_slab++;
    to->n_shared++;
    return true;
}

bool lk_pool_share(struct lk_pool *to, struct lk_pool *from) {
    lk_pool_unreserve(from);
    lk_pool_trim(from);
    clear(to);
    bool ok = from->ledger->common == to->ledger->common &&
              from->slab_ledger->common == to->slab_ledger->common &&
              from->arena.device == to->arena.device && share_slabs(from) &&
              grow_pages(to, from->n_slab);
    while (ok && to->n_slab < from->n_slab) {
        uint32_t number = ++to->n_slab;
        const struct lk_slab *slab = lk_arena_slab(&from->arena, number);
        if (!slab->mem)
            give_number(to, number);
        else if (!(ok = join_slab(to, number, slab, from->class[slab->class].size)))
            to->n_slab--;
    }
    if (!ok) clear(to);
    return ok;
}

static bool holds_slab(const struct lk_pool *pool, uint32_t number,
                       const struct lk_slab_refs *refs) {
    return refs && number <= pool->n_slab && lk_arena_slab(&pool->arena, number)->refs == refs;
}

bool lk_pool_is_same(const struct lk_pool *pool, const struct lk_pool *other, lk_block block) {
    return holds_slab(other, block >> other->arena.shift, slab_of(pool, block)->refs);
}

uint64_t lk_pool_bytes_without(const struct lk_pool *pool, const struct lk_pool *other) {
    uint64_t bytes = 0;
    for (uint32_t number = 1; number <= pool->n_slab; number++) {
        const struct lk_slab *slab = lk_arena_slab(&pool->arena, number);
        if (slab->refs && !holds_slab(other, number, slab->refs))
            bytes += lk_pool_slab_bytes(&pool->class[slab->class]);
    }
    return bytes;
}

/* If all other pools have released the slab, this pool may write to it: new pools can only join
 * through this one. */
static bool is_shared(const struct lk_slab *slab) {
    return slab->refs && atomic_load(&slab->refs->n_pool) > 1;
}

bool lk_pool_is_shared(struct lk_pool *pool, lk_block block) {
    pthread_mutex_lock(&pool->lock);
    bool shared = is_shared(slab_of(pool, block));
    pthread_mutex_unlock(&pool->lock);
    return shared;
}

bool lk_pool_is_reusable(struct lk_pool *pool, lk_block block) {
    pthread_mutex_lock(&pool->lock);
    bool reusable = !slab_of(pool, block)->refs;
    pthread_mutex_unlock(&pool->lock);
    return reusable;
}

lk_block lk_pool_make_writable(struct lk_pool *pool, lk_block block) {
    pthread_mutex_lock(&pool->lock);
    const struct lk_slab *slab = slab_of(pool, block);
    struct lk_pool_class *class = &pool->class[slab->class];
    lk_block writable = is_shared(slab) ? alloc_block(pool, class) : block;
    if (writable && writable != block) {
        lk_block_copy(&pool->arena, writable, &pool->arena, block, class->size);
        free_block(pool, block);
    }
    pthread_mutex_unlock(&pool->lock);
    return writable;
}
