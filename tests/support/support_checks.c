/* Checks in all tests, whatever they test: they are linked with --wrap of these functions. A thread
 * unlocks only what it has locked, and destroys only what is not locked: a lock or its release left
 * out is seen without a second thread to race with.
 * Memory of caches, weights and scratch is removed from ledgers before the program ends. */
#define _GNU_SOURCE /* gettid */
#include "base/ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
void *__real_lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
void __real_lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr, size_t size);
bool __real_lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
                    size_t new_size);
bool __real_lk_ledger_add(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
void __real_lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);

static atomic_uint_fast64_t held[LK_N_PURPOSE]; /* bytes in all ledgers */

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
    if (mutex->__data.__owner != gettid()) { /* of glibc, for all kinds of mutexes */
        fprintf(stderr, "a mutex is unlocked by a thread that has not locked it\n");
        abort();
    }
    return __real_pthread_mutex_unlock(mutex);
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex) {
    if (mutex->__data.__lock) {
        fprintf(stderr, "a mutex is destroyed while it is locked\n");
        abort();
    }
    return __real_pthread_mutex_destroy(mutex);
}

void *__wrap_lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    void *ptr = __real_lk_alloc(ledger, purpose, size);
    if (ptr) held[purpose] += size;
    return ptr;
}

void __wrap_lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr, size_t size) {
    if (ptr) held[purpose] -= size;
    __real_lk_release(ledger, purpose, ptr, size);
}

bool __wrap_lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
                    size_t new_size) {
    size_t before = *ptr ? old_size : 0;
    bool good = __real_lk_grow(ledger, purpose, ptr, old_size, new_size);
    if (good) held[purpose] += new_size - before;
    return good;
}

bool __wrap_lk_ledger_add(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    bool good = __real_lk_ledger_add(ledger, purpose, size);
    if (good) held[purpose] += size;
    return good;
}

void __wrap_lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    held[purpose] -= size;
    __real_lk_ledger_remove(ledger, purpose, size);
}

/* Of all purposes but the last: a handle may own the ledger that it was counted in. */
__attribute__((destructor)) static void check_ledgers(void) {
    bool good = true;
    for (int i = 0; i < LK_FOR_OTHER; i++) {
        if (held[i])
            fprintf(stderr, "ledgers still hold %lld bytes of purpose %d\n", (long long)held[i], i);
        good &= held[i] == 0;
    }
    if (!good) _exit(1);
}
