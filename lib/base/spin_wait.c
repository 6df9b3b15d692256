/* Spins, then sleeps. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clock_gettime */
#endif
#include "base/spin_wait.h"

#include "base/os.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Defined if ggml was compiled with cmake/ggml_wait.h. */
extern char lk_ggml_waits __attribute__((weak));

bool lk_ggml_sleeps(void) { return &lk_ggml_waits != NULL; }

/* Threads that sleep or are about to. Without any, there is none to wake. */
static int n_sleeping;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_processor(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static bool has_changed(const int *value, int old) {
    return __atomic_load_n(value, __ATOMIC_SEQ_CST) != old;
}

/* Spin for up to `max_ns`. */
static bool spin(const int *value, int old, int64_t max_ns) {
    enum { ROUND = 32 }; /* reading the clock takes about as long as one pause */
    int64_t end = now_ns() + max_ns;
    do {
        for (int i = 0; i < ROUND; i++) {
            if (has_changed(value, old)) return true;
            pause_processor();
        }
    } while (now_ns() < end);
    return has_changed(value, old);
}

/* A thread that spun in vain spins for half as long the next time, down to MIN_NS: another thread
 * needs its processor. After a wait that was short enough, it may spin for twice as long again. */
void lk_ggml_wait(int *value, int old) {
    enum { MIN_NS = 2000, MAX_NS = 100000 };
    static _Thread_local int64_t spin_ns = MAX_NS;
    if (spin(value, old, spin_ns)) {
        if (spin_ns < MAX_NS) spin_ns *= 2;
        return;
    }
    if (spin_ns > MIN_NS) spin_ns /= 2;
    __atomic_fetch_add(&n_sleeping, 1, __ATOMIC_SEQ_CST);
    while (!has_changed(value, old)) lk_os_wait_on(value, old);
    __atomic_fetch_sub(&n_sleeping, 1, __ATOMIC_SEQ_CST);
}

void lk_ggml_wake(int *value) {
    if (__atomic_load_n(&n_sleeping, __ATOMIC_SEQ_CST) > 0) lk_os_wake(value);
}
