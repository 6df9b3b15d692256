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
        if (class->slab[middle].mem <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct lk_slab *slab_of(struct lk_pool_class *class, const void *block) {
    return &class->slab[slabs_up_to(class, block) - 1];
}

static void push(struct lk_pool_class *class, void *block) {
    set_next(block, class->free);
    class->free = block;
    class->n_free++;
    slab_of(class, block)->n_free++;
}

static void *pop(struct lk_pool_class *class) {
    void *block = class->free;
    class->free = next_of(block);
    class->n_free--;
    slab_of(class, block)->n_free--;
    return block;
}

static int add_slab(struct lk_pool *pool, struct lk_pool_class *class) {
    if (class->n_slab == class->cap) {
        size_t cap = 2 * class->cap + 4, unit = sizeof *class->slab;
        if (!lk_grow(pool->ledger, LK_FOR_CACHE, (void **)&class->slab, class->cap * unit, cap * unit)) return 0;
        class->cap = cap;
    }
    char *mem = lk_alloc(pool->ledger, LK_FOR_CACHE, class->n_block * class->size);
    if (!mem) return 0;
    size_t at = slabs_up_to(class, mem);
    memmove(class->slab + at + 1, class->slab + at, (class->n_slab - at) * sizeof *class->slab);
    class->slab[at] = (struct lk_slab){.mem = mem};
    class->n_slab++;
    for (size_t i = class->n_block; i-- > 0;) push(class, mem + i * class->size);
    return 1;
}

static void drop_slab(struct lk_pool *pool, struct lk_pool_class *class, struct lk_slab *slab) {
    char *mem = slab->mem, *end = mem + class->n_block * class->size;
    void *kept = NULL;
    for (void *block = class->free, *next; block; block = next) {
        next = next_of(block);
        if ((char *)block >= mem && (char *)block < end) continue;
        set_next(block, kept);
        kept = block;
    }
    class->free = kept;
    class->n_free -= class->n_block;
    lk_release(pool->ledger, LK_FOR_CACHE, mem, class->n_block * class->size);
    size_t at = slab - class->slab;
    class->n_slab--;
    memmove(slab, slab + 1, (class->n_slab - at) * sizeof *slab);
}

static bool can_spare(const struct lk_pool_class *class, const struct lk_slab *slab) {
    return slab->n_free == class->n_block && class->n_free >= class->n_wanted + class->n_block;
}

void lk_pool_want_none(struct lk_pool *pool) {
    pool->hold = false;
    for (int i = 0; i < pool->n_class; i++) pool->class[i].n_wanted = 0;
}

int lk_pool_want(struct lk_pool *pool, size_t size, size_t n) {
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

void *lk_pool_take(struct lk_pool *pool, size_t size) {
    pthread_mutex_lock(&pool->lock);
    struct lk_pool_class *class = class_of(pool, size);
    void *block = NULL;
    if (class && (class->free || add_slab(pool, class))) block = pop(class);
    if (block && class->n_wanted) class->n_wanted--;
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void lk_pool_give(struct lk_pool *pool, size_t size, void *block) {
    pthread_mutex_lock(&pool->lock);
    struct lk_pool_class *class = class_of(pool, size);
    struct lk_slab *slab = slab_of(class, block);
    push(class, block);
    if (!pool->hold && can_spare(class, slab)) drop_slab(pool, class, slab);
    pthread_mutex_unlock(&pool->lock);
}

void lk_pool_trim(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++) {
        struct lk_pool_class *class = &pool->class[i];
        for (size_t s = class->n_slab; s-- > 0;)
            if (can_spare(class, &class->slab[s])) drop_slab(pool, class, &class->slab[s]);
    }
}

void lk_pool_destroy(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++) {
        struct lk_pool_class *class = &pool->class[i];
        for (size_t k = 0; k < class->n_slab; k++) lk_release(pool->ledger, LK_FOR_CACHE, class->slab[k].mem, class->n_block * class->size);
        lk_release(pool->ledger, LK_FOR_CACHE, class->slab, class->cap * sizeof *class->slab);
    }
    pthread_mutex_destroy(&pool->lock);
}
