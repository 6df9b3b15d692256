/* The warps of a cluster in C++. They take turns in one thread, each with a stack of its own, and
 * one that waits lets the next one run: a thread for each would spend most of the time on waking
 * others. With ThreadSanitizer, which is to find races, and without glibc a warp is a thread. */
#ifndef LK_CUDA_TURNS_HOST_H
#define LK_CUDA_TURNS_HOST_H

#include <functional>
#include <stdlib.h>
#include <vector>

#if defined __GLIBC__ && !defined __SANITIZE_THREAD__

#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
static inline void __sanitizer_start_switch_fiber(void **, const void *, size_t) {}
static inline void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) {}
#endif

/* One of them, or the thread's own stack. `fake`: AddressSanitizer's. */
struct host_stack {
    ucontext_t context;
    char *memory; /* [BYTES] after a page that cannot be touched */
    const void *bottom;
    size_t size;
    void *fake;
    bool done;
    enum { BYTES = 1 << 22, GUARD = 1 << 12 };
};

struct host_turns {
    host_stack own;
    std::vector<host_stack> warp; /* kept for the next cluster */
    size_t current;
    const std::function<void(int)> *run;

    ~host_turns() {
        for (host_stack &w : warp) munmap(w.memory, host_stack::GUARD + host_stack::BYTES);
    }
};
inline thread_local host_turns turns;

/* Leave `from` for `to`, until something comes back. */
static inline void host_switch(host_stack &from, host_stack &to) {
    __sanitizer_start_switch_fiber(from.done ? NULL : &from.fake, to.bottom, to.size);
    swapcontext(&from.context, &to.context);
    __sanitizer_finish_switch_fiber(from.fake, NULL, NULL);
}

static inline void host_entry() {
    host_turns &t = turns;
    host_stack &self = t.warp[t.current];
    __sanitizer_finish_switch_fiber(NULL, &t.own.bottom, &t.own.size);
    (*t.run)((int)t.current);
    self.done = true;
    host_switch(self, t.own);
}

/* Let the other warps run. */
static inline void host_yield() { host_switch(turns.warp[turns.current], turns.own); }

static inline void host_new_stack(host_stack &w) {
    w.memory = (char *)mmap(NULL, host_stack::GUARD + host_stack::BYTES, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w.memory == MAP_FAILED) __builtin_trap();
    w.bottom = w.memory + host_stack::GUARD, w.size = host_stack::BYTES;
    mprotect(w.memory + host_stack::GUARD, host_stack::BYTES, PROT_READ | PROT_WRITE);
}

/* Run run(i) for all warps i < n. */
static inline void host_run(int n, const std::function<void(int)> &run) {
    host_turns &t = turns;
    t.run = &run;
    for (size_t had = t.warp.size(); t.warp.size() < (size_t)n; had++) {
        t.warp.push_back(host_stack{});
        host_new_stack(t.warp[had]);
    }
    for (int i = 0; i < n; i++) {
        host_stack &w = t.warp[(size_t)i];
        w.done = false, w.fake = NULL;
        getcontext(&w.context);
        w.context.uc_stack.ss_sp = (void *)w.bottom, w.context.uc_stack.ss_size = w.size;
        w.context.uc_link = NULL;
        makecontext(&w.context, host_entry, 0);
    }
    for (int left = n; left > 0;)
        for (int i = 0; i < n; i++) {
            host_stack &w = t.warp[(size_t)i];
            if (w.done) continue;
            t.current = (size_t)i;
            host_switch(t.own, w);
            left -= w.done;
        }
}

/* All `count` warps wait for each other. */
struct host_barrier {
    int count, n = 0, round = 0;
    explicit host_barrier(int warps) : count(warps) {}
    void wait() {
        int mine = round;
        if (++n == count)
            n = 0, round++;
        else
            while (round == mine) host_yield();
    }
};

#else

#include <pthread.h>
#include <sched.h>
#include <thread>

static inline void host_yield() { sched_yield(); }

static inline void host_run(int n, const std::function<void(int)> &run) {
    std::vector<std::thread> warps;
    for (int i = 0; i < n; i++) warps.emplace_back(run, i);
    for (auto &warp : warps) warp.join();
}

struct host_barrier {
    pthread_barrier_t barrier;
    explicit host_barrier(int warps) { pthread_barrier_init(&barrier, NULL, (unsigned)warps); }
    ~host_barrier() { pthread_barrier_destroy(&barrier); }
    void wait() { pthread_barrier_wait(&barrier); }
};

#endif
#endif
