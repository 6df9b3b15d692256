/* A pool of blocks by size: slabs, free lists, and slabs shared with other pools. */
#include "cache/pool.h"

#include <string.h>

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger) {
    memset(pool, 0, sizeof *pool);
    pool->ledger = ledger;
    pthread_mutex_init(&pool->lock, NULL);
}

static struct lk_pool_class *find_class(struct lk_pool *pool, size_t size) {
    for (int i = 0; i < pool->n_class; i++)
        if (pool->class[i].size == size) return &pool->class[i];
    if (pool->n_class == LK_POOL_CLASSES) return NULL;
    struct lk_pool_class *class = &pool->class[pool->n_class++];
    *class = (struct lk_pool_class){.size = size, .n_block = (LK_SLAB_BYTES + size - 1) / size};
    return class;
}

static void *next_of(const void *block) {
    void *next;
    memcpy(&next, block, sizeof next);
    return next;
}

static void set_next(void *block, void *next) { memcpy(block, &next, sizeof next); }

/* Number of slabs at or below this address. */
static size_t count_slabs_below(const struct lk_pool_class *class, const char *at) {
    size_t low = 0, high = class->n_slab;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (class->slab[middle].mem <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct lk_slab *find_slab(struct lk_pool_class *class, const void *block) {
    return &class->slab[count_slabs_below(class, block) - 1];
}

static size_t slab_bytes(const struct lk_pool_class *class) { return class->n_block * class->size; }

static void push_free(struct lk_pool_class *class, void *block) {
    set_next(block, class->free);
    class->free = block;
    class->n_free++;
}

static void *pop_free(struct lk_pool_class *class) {
    void *block = class->free;
    class->free = next_of(block);
    class->n_free--;
    find_slab(class, block)->n_held++;
    return block;
}

static bool add_slab(struct lk_pool *pool, struct lk_pool_class *class) {
    if (class->n_slab == class->cap) {
        size_t cap = 2 * class->cap + 4, unit = sizeof *class->slab;
        if (!lk_grow(pool->ledger, LK_FOR_CACHE, (void **)&class->slab, class->cap * unit,
                     cap * unit))
            return false;
        class->cap = cap;
    }
    char *mem = lk_alloc(pool->ledger, LK_FOR_CACHE, slab_bytes(class));
    if (!mem) return false;
    size_t at = count_slabs_below(class, mem);
    memmove(class->slab + at + 1, class->slab + at, (class->n_slab - at) * sizeof *class->slab);
    class->slab[at] = (struct lk_slab){.mem = mem};
    class->n_slab++;
    for (size_t i = class->n_block; i-- > 0;) push_free(class, mem + i * class->size);
    return true;
}

static void remove_slab(struct lk_pool_class *class, struct lk_slab *slab) {
    size_t at = slab - class->slab;
    class->n_slab--;
    memmove(slab, slab + 1, (class->n_slab - at) * sizeof *slab);
}

/* Remove the slab's free blocks from the free list. */
static void unlink_free_blocks(struct lk_pool_class *class, const struct lk_slab *slab) {
    char *mem = slab->mem, *end = mem + slab_bytes(class);
    void *kept = NULL;
    if (slab->n_held == class->n_block) return;
    for (void *block = class->free, *next; block; block = next) {
        next = next_of(block);
        if ((char *)block >= mem && (char *)block < end) continue;
        set_next(block, kept);
        kept = block;
    }
    class->free = kept;
    class->n_free -= class->n_block - slab->n_held;
}

static void free_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    unlink_free_blocks(class, slab);
    lk_release(pool->ledger, LK_FOR_CACHE, slab->mem, slab_bytes(class));
    remove_slab(class, slab);
}

static bool is_droppable(const struct lk_pool_class *class, const struct lk_slab *slab) {
    return slab->n_held == 0 && class->n_free >= class->n_reserved + class->n_block;
}

/* Give up a shared slab after its last block of this pool was freed. */
static void release_shared_slab(struct lk_pool *pool, struct lk_pool_class *class,
                                struct lk_slab *slab) {
    lk_ledger_return(pool->ledger, slab_bytes(class));
    if (atomic_fetch_sub(&slab->refs->n_pool, 1) == 1) {
        lk_release(pool->ledger->common, LK_FOR_CACHE, slab->mem, slab_bytes(class));
        lk_release(pool->ledger->common, LK_FOR_CACHE, slab->refs, sizeof *slab->refs);
    }
    remove_slab(class, slab);
    pool->n_shared--;
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

static void *alloc_block(struct lk_pool *pool, size_t size) {
    struct lk_pool_class *class = find_class(pool, size);
    void *block = NULL;
    if (class && (class->free || add_slab(pool, class))) block = pop_free(class);
    if (block && class->n_reserved) class->n_reserved--;
    return block;
}

static void free_block(struct lk_pool *pool, size_t size, void *block) {
    struct lk_pool_class *class = find_class(pool, size);
    struct lk_slab *slab = find_slab(class, block);
    slab->n_held--;
    if (slab->refs) {
        if (slab->n_held == 0) release_shared_slab(pool, class, slab);
        return;
    }
    push_free(class, block);
    if (!pool->keep_free && is_droppable(class, slab)) free_slab(pool, class, slab);
}

void *lk_pool_alloc(struct lk_pool *pool, size_t size) {
    pthread_mutex_lock(&pool->lock);
    void *block = alloc_block(pool, size);
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void lk_pool_free(struct lk_pool *pool, size_t size, void *block) {
    if (!block) return;
    pthread_mutex_lock(&pool->lock);
    free_block(pool, size, block);
    pthread_mutex_unlock(&pool->lock);
}

/* Remove the free blocks of all slabs to be dropped from the free list. */
static void unlink_dropped_slabs(struct lk_pool_class *class) {
    void *kept = NULL;
    for (void *block = class->free, *next; block; block = next) {
        next = next_of(block);
        if (find_slab(class, block)->drop) continue;
        set_next(block, kept);
        kept = block;
    }
    class->free = kept;
}

/* Free all slabs that are free and not reserved, in one pass over the free list. */
static void trim_class(struct lk_pool *pool, struct lk_pool_class *class) {
    size_t n_kept = 0, n_slab = class->n_slab;
    for (size_t s = n_slab; s-- > 0;) {
        struct lk_slab *slab = &class->slab[s];
        slab->drop = is_droppable(class, slab);
        if (slab->drop) class->n_free -= class->n_block;
        n_kept += !slab->drop;
    }
    if (n_kept == n_slab) return;
    unlink_dropped_slabs(class);
    class->n_slab = 0;
    for (size_t s = 0; s < n_slab; s++) {
        struct lk_slab slab = class->slab[s];
        if (slab.drop)
            lk_release(pool->ledger, LK_FOR_CACHE, slab.mem, slab_bytes(class));
        else
            class->slab[class->n_slab++] = slab;
    }
}

void lk_pool_trim(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++) trim_class(pool, &pool->class[i]);
}

void lk_pool_destroy(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++) {
        struct lk_pool_class *class = &pool->class[i];
        while (class->n_slab) {
            struct lk_slab *last = &class->slab[class->n_slab - 1];
            if (last->refs)
                release_shared_slab(pool, class, last);
            else
                free_slab(pool, class, last);
        }
        lk_release(pool->ledger, LK_FOR_CACHE, class->slab, class->cap * sizeof *class->slab);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* ---- slabs of several pools ---- */

/* Make one of the pool's own slabs shared. */
static bool share_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    struct lk_ledger *common = pool->ledger->common;
    struct lk_slab_refs *refs = common ? lk_alloc(common, LK_FOR_CACHE, sizeof *refs) : NULL;
    if (!refs) return false;
    if (!lk_ledger_share(pool->ledger, LK_FOR_CACHE, slab_bytes(class))) {
        lk_release(common, LK_FOR_CACHE, refs, sizeof *refs);
        return false;
    }
    unlink_free_blocks(class, slab);
    refs->n_pool = 1;
    slab->refs = refs;
    pool->n_shared++;
    return true;
}

/* Let `to` join the shared slabs of a class of another pool. False without memory. */
static bool join_class(struct lk_pool *to, const struct lk_pool_class *from) {
    struct lk_pool_class *class = find_class(to, from->size);
    if (!class) return false;
    if (class->cap < from->n_slab) {
        size_t unit = sizeof *class->slab;
        if (!lk_grow(to->ledger, LK_FOR_CACHE, (void **)&class->slab, class->cap * unit,
                     from->n_slab * unit))
            return false;
        class->cap = from->n_slab;
    }
    for (size_t k = 0; k < from->n_slab; k++) {
        if (!lk_ledger_borrow(to->ledger, slab_bytes(class))) return false;
        class->slab[class->n_slab++] = from->slab[k];
        atomic_fetch_add(&from->slab[k].refs->n_pool, 1);
        to->n_shared++;
    }
    return true;
}

bool lk_pool_share(struct lk_pool *to, struct lk_pool *from) {
    bool ok = from->ledger->common == to->ledger->common;
    lk_pool_unreserve(from);
    lk_pool_trim(from);
    for (int i = 0; i < from->n_class; i++) {
        struct lk_pool_class *class = &from->class[i];
        for (size_t k = 0; ok && k < class->n_slab; k++)
            if (!class->slab[k].refs) ok = share_slab(from, class, &class->slab[k]);
    }
    for (int i = 0; ok && i < from->n_class; i++) ok = join_class(to, &from->class[i]);
    for (int i = 0; !ok && i < to->n_class; i++) {
        struct lk_pool_class *class = &to->class[i];
        while (class->n_slab) release_shared_slab(to, class, &class->slab[class->n_slab - 1]);
    }
    return ok;
}

uint64_t lk_pool_bytes_without(const struct lk_pool *pool, const struct lk_pool *other) {
    uint64_t bytes = 0;
    for (int i = 0; i < pool->n_class; i++) {
        const struct lk_pool_class *class = &pool->class[i], *same = other->class;
        while (same < other->class + other->n_class && same->size != class->size) same++;
        size_t n_other = same < other->class + other->n_class ? same->n_slab : 0, k = 0;
        for (size_t s = 0; s < class->n_slab; s++) { /* both are in the order of addresses */
            const struct lk_slab *slab = &class->slab[s];
            while (k < n_other && same->slab[k].mem < slab->mem) k++;
            if (slab->refs && (k == n_other || same->slab[k].mem != slab->mem))
                bytes += slab_bytes(class);
        }
    }
    return bytes;
}

/* If all other pools have released the slab, this pool may write to it: new pools can only join
 * through this one. */
static bool is_shared(struct lk_pool *pool, size_t size, const void *block) {
    if (pool->n_shared == 0) return false;
    const struct lk_slab *slab = find_slab(find_class(pool, size), block);
    return slab->refs && atomic_load(&slab->refs->n_pool) > 1;
}

bool lk_pool_is_shared(struct lk_pool *pool, size_t size, const void *block) {
    pthread_mutex_lock(&pool->lock);
    bool shared = is_shared(pool, size, block);
    pthread_mutex_unlock(&pool->lock);
    return shared;
}

bool lk_pool_is_reusable(struct lk_pool *pool, size_t size, const void *block) {
    pthread_mutex_lock(&pool->lock);
    bool reusable = !find_slab(find_class(pool, size), block)->refs;
    pthread_mutex_unlock(&pool->lock);
    return reusable;
}

void *lk_pool_make_writable(struct lk_pool *pool, size_t size, void *block) {
    pthread_mutex_lock(&pool->lock);
    void *writable = is_shared(pool, size, block) ? alloc_block(pool, size) : block;
    if (writable && writable != block) {
        memcpy(writable, block, size);
        free_block(pool, size, block);
    }
    pthread_mutex_unlock(&pool->lock);
    return writable;
}
