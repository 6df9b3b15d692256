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
    *class = (struct lk_pool_class){.size = size};
    return class;
}

static void push(struct lk_pool_class *class, void *block) {
    memcpy(block, &class->free, sizeof(void *));
    class->free = block;
    class->n_free++;
}

static void *pop(struct lk_pool_class *class) {
    void *block = class->free;
    memcpy(&class->free, block, sizeof(void *));
    class->n_free--;
    return block;
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
    for (int i = 0; i < pool->n_class; i++) {
        struct lk_pool_class *class = &pool->class[i];
        while (class->n_free < class->n_wanted) {
            void *block = lk_alloc(pool->ledger, LK_FOR_CACHE, class->size);
            if (!block) return 0;
            push(class, block);
        }
    }
    return 1;
}

void *lk_pool_take(struct lk_pool *pool, size_t size) {
    pthread_mutex_lock(&pool->lock);
    struct lk_pool_class *class = class_of(pool, size);
    void *block = class && class->free ? pop(class) : NULL;
    if (block && class->n_wanted) class->n_wanted--;
    pthread_mutex_unlock(&pool->lock);
    return block ? block : lk_alloc(pool->ledger, LK_FOR_CACHE, size);
}

void lk_pool_give(struct lk_pool *pool, size_t size, void *block) {
    pthread_mutex_lock(&pool->lock);
    struct lk_pool_class *class = class_of(pool, size);
    /* One spare of each size stays: the next layer takes what this one gives. */
    if (class && (pool->hold || class->n_free <= class->n_wanted)) push(class, block);
    else lk_release(pool->ledger, LK_FOR_CACHE, block, size);
    pthread_mutex_unlock(&pool->lock);
}

void lk_pool_trim(struct lk_pool *pool) {
    for (int i = 0; i < pool->n_class; i++) {
        struct lk_pool_class *class = &pool->class[i];
        while (class->n_free > class->n_wanted) lk_release(pool->ledger, LK_FOR_CACHE, pop(class), class->size);
    }
}

void lk_pool_destroy(struct lk_pool *pool) {
    lk_pool_want_none(pool);
    lk_pool_trim(pool);
    pthread_mutex_destroy(&pool->lock);
}
