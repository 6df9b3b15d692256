#include "cache/pool.h"

#include <string.h>

void lk_pool_init(struct lk_pool *pool, struct lk_ledger *ledger) {
    memset(pool, 0, sizeof *pool);
    pool->ledger = ledger;
    pthread_mutex_init(&pool->lock, NULL);
}

static struct lk_pool_class *class_of(struct lk_pool *pool, size_t size) {
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

/* Slabs below this address, or at it. */
static size_t slabs_up_to(const struct lk_pool_class *class, const char *at) {
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

static struct lk_slab *slab_of(struct lk_pool_class *class, const void *block) {
    return &class->slab[slabs_up_to(class, block) - 1];
}

static size_t slab_bytes(const struct lk_pool_class *class) { return class->n_block * class->size; }

static void push(struct lk_pool_class *class, void *block) {
    set_next(block, class->free);
    class->free = block;
    class->n_free++;
}

static void *pop(struct lk_pool_class *class) {
    void *block = class->free;
    class->free = next_of(block);
    class->n_free--;
    slab_of(class, block)->n_held++;
    return block;
}

static int add_slab(struct lk_pool *pool, struct lk_pool_class *class) {
    if (class->n_slab == class->cap) {
        size_t cap = 2 * class->cap + 4, unit = sizeof *class->slab;
        if (!lk_grow(pool->ledger, LK_FOR_CACHE, (void **)&class->slab, class->cap * unit,
                     cap * unit))
            return 0;
        class->cap = cap;
    }
    char *mem = lk_alloc(pool->ledger, LK_FOR_CACHE, slab_bytes(class));
    if (!mem) return 0;
    size_t at = slabs_up_to(class, mem);
    memmove(class->slab + at + 1, class->slab + at, (class->n_slab - at) * sizeof *class->slab);
    class->slab[at] = (struct lk_slab){.mem = mem};
    class->n_slab++;
    for (size_t i = class->n_block; i-- > 0;) push(class, mem + i * class->size);
    return 1;
}

static void remove_slab(struct lk_pool_class *class, struct lk_slab *slab) {
    size_t at = slab - class->slab;
    class->n_slab--;
    memmove(slab, slab + 1, (class->n_slab - at) * sizeof *slab);
}

/* The slab's free blocks are not to be taken. */
static void forget_free(struct lk_pool_class *class, const struct lk_slab *slab) {
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

static void drop_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    forget_free(class, slab);
    lk_release(pool->ledger, LK_FOR_CACHE, slab->mem, slab_bytes(class));
    remove_slab(class, slab);
}

static bool can_spare(const struct lk_pool_class *class, const struct lk_slab *slab) {
    return slab->n_held == 0 && class->n_free >= class->n_wanted + class->n_block;
}

/* The pool holds no block of a shared slab any more. */
static void leave_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    lk_ledger_give_up(pool->ledger, slab_bytes(class));
    if (atomic_fetch_sub(&slab->shared->n_pool, 1) == 1) {
        lk_release(pool->ledger->common, LK_FOR_CACHE, slab->mem, slab_bytes(class));
        lk_release(pool->ledger->common, LK_FOR_CACHE, slab->shared, sizeof *slab->shared);
    }
    remove_slab(class, slab);
    pool->n_shared--;
}

void lk_pool_reserve_none(struct lk_pool *pool) {
    pool->hold = false;
    for (int i = 0; i < pool->n_class; i++) pool->class[i].n_wanted = 0;
}

int lk_pool_reserve(struct lk_pool *pool, size_t size, size_t n) {
    if (n == 0) return 1;
    struct lk_pool_class *class = class_of(pool, size);
    if (!class) return 0;
    class->n_wanted += n;
    return 1;
}

int lk_pool_fill(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++)
        while (pool->class[i].n_free < pool->class[i].n_wanted)
            if (!add_slab(pool, &pool->class[i])) return 0;
    return 1;
}

static void *take(struct lk_pool *pool, size_t size) {
    struct lk_pool_class *class = class_of(pool, size);
    void *block = NULL;
    if (class && (class->free || add_slab(pool, class))) block = pop(class);
    if (block && class->n_wanted) class->n_wanted--;
    return block;
}

static void give(struct lk_pool *pool, size_t size, void *block) {
    struct lk_pool_class *class = class_of(pool, size);
    struct lk_slab *slab = slab_of(class, block);
    slab->n_held--;
    if (slab->shared) {
        if (slab->n_held == 0) leave_slab(pool, class, slab);
        return;
    }
    push(class, block);
    if (!pool->hold && can_spare(class, slab)) drop_slab(pool, class, slab);
}

void *lk_pool_alloc(struct lk_pool *pool, size_t size) {
    pthread_mutex_lock(&pool->lock);
    void *block = take(pool, size);
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void lk_pool_free(struct lk_pool *pool, size_t size, void *block) {
    pthread_mutex_lock(&pool->lock);
    give(pool, size, block);
    pthread_mutex_unlock(&pool->lock);
}

/* Keep free blocks of those slabs only that are not to be dropped. */
static void forget_spare(struct lk_pool_class *class) {
    void *kept = NULL;
    for (void *block = class->free, *next; block; block = next) {
        next = next_of(block);
        if (slab_of(class, block)->spare) continue;
        set_next(block, kept);
        kept = block;
    }
    class->free = kept;
}

/* Drop the slabs that are all free and not wanted, in one walk over the free blocks. */
static void trim_class(struct lk_pool *pool, struct lk_pool_class *class) {
    size_t n_kept = 0, n_slab = class->n_slab;
    for (size_t s = n_slab; s-- > 0;) {
        struct lk_slab *slab = &class->slab[s];
        slab->spare = can_spare(class, slab);
        if (slab->spare) class->n_free -= class->n_block;
        n_kept += !slab->spare;
    }
    if (n_kept == n_slab) return;
    forget_spare(class);
    class->n_slab = 0;
    for (size_t s = 0; s < n_slab; s++) {
        struct lk_slab slab = class->slab[s];
        if (slab.spare)
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
            if (last->shared)
                leave_slab(pool, class, last);
            else
                drop_slab(pool, class, last);
        }
        lk_release(pool->ledger, LK_FOR_CACHE, class->slab, class->cap * sizeof *class->slab);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* ---- slabs of several pools ---- */

static int share_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    struct lk_ledger *common = pool->ledger->common;
    struct lk_shared *shared = common ? lk_alloc(common, LK_FOR_CACHE, sizeof *shared) : NULL;
    if (!shared) return 0;
    if (!lk_ledger_share(pool->ledger, LK_FOR_CACHE, slab_bytes(class))) {
        lk_release(common, LK_FOR_CACHE, shared, sizeof *shared);
        return 0;
    }
    forget_free(class, slab);
    shared->n_pool = 1;
    slab->shared = shared;
    pool->n_shared++;
    return 1;
}

/* Everything that can fail of `to` taking part in the slabs of a class: room for them, and their bytes. */
static int prepare_class(struct lk_pool *to, const struct lk_pool_class *from) {
    struct lk_pool_class *class = class_of(to, from->size);
    if (!class) return 0;
    if (class->cap < from->n_slab) {
        size_t unit = sizeof *class->slab;
        if (!lk_grow(to->ledger, LK_FOR_CACHE, (void **)&class->slab, class->cap * unit,
                     from->n_slab * unit))
            return 0;
        class->cap = from->n_slab;
    }
    for (size_t k = 0; k < from->n_slab; k++) {
        if (!lk_ledger_borrow(to->ledger, slab_bytes(class))) return 0;
        class->slab[class->n_slab++] = from->slab[k];
        atomic_fetch_add(&from->slab[k].shared->n_pool, 1);
        to->n_shared++;
    }
    return 1;
}

static void leave_all(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++)
        while (pool->class[i].n_slab)
            leave_slab(pool, &pool->class[i], &pool -> class[i].slab[pool->class[i].n_slab - 1]);
}

int lk_pool_share(struct lk_pool *to, struct lk_pool *from) {
    int ok = from->ledger->common == to->ledger->common;
    lk_pool_reserve_none(from);
    lk_pool_trim(from);
    for (int i = 0; i < from->n_class; i++) {
        struct lk_pool_class *class = &from->class[i];
        for (size_t k = 0; ok && k < class->n_slab; k++)
            if (!class->slab[k].shared) ok = share_slab(from, class, &class->slab[k]);
    }
    for (int i = 0; ok && i < from->n_class; i++) ok = prepare_class(to, &from->class[i]);
    if (!ok) leave_all(to);
    return ok;
}

/* A slab whose other pools have all gone is this one's to change: nobody can join but by way of this pool. */
static bool is_shared(struct lk_pool *pool, size_t size, const void *block) {
    if (pool->n_shared == 0) return false;
    const struct lk_slab *slab = slab_of(class_of(pool, size), block);
    return slab->shared && atomic_load(&slab->shared->n_pool) > 1;
}

bool lk_pool_is_shared(struct lk_pool *pool, size_t size, const void *block) {
    pthread_mutex_lock(&pool->lock);
    bool shared = is_shared(pool, size, block);
    pthread_mutex_unlock(&pool->lock);
    return shared;
}

bool lk_pool_is_reusable(struct lk_pool *pool, size_t size, const void *block) {
    pthread_mutex_lock(&pool->lock);
    bool back = !slab_of(class_of(pool, size), block)->shared;
    pthread_mutex_unlock(&pool->lock);
    return back;
}

void *lk_pool_make_writable(struct lk_pool *pool, size_t size, void *block) {
    pthread_mutex_lock(&pool->lock);
    void *own = is_shared(pool, size, block) ? take(pool, size) : block;
    if (own && own != block) {
        memcpy(own, block, size);
        give(pool, size, block);
    }
    pthread_mutex_unlock(&pool->lock);
    return own;
}
