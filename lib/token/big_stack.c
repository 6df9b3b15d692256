/* Runs a function on a thread with a large stack. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_NORESERVE, MAP_STACK, pthread_attr_setstack */
#endif
#include "token/big_stack.h"

#include <pthread.h>
#include <sys/mman.h>

struct stack_call {
    void (*fn)(void *arg);
    void *arg;
};

static void *run_call(void *p) {
    struct stack_call *call = p;
    call->fn(call->arg);
    return NULL;
}

bool lk_call_with_stack(void (*fn)(void *arg), void *arg, size_t stack_bytes) {
    enum { GUARD = 1 << 16 }; /* inaccessible, so that a stack overflow faults */
    size_t size = (stack_bytes + 2 * GUARD - 1) / GUARD * GUARD;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return false;
    struct stack_call call = {fn, arg};
    pthread_attr_t attr;
    pthread_t thread;
    bool ran = false;
    if (mprotect(memory, GUARD, PROT_NONE) == 0 && pthread_attr_init(&attr) == 0) {
        ran = pthread_attr_setstack(&attr, memory + GUARD, size - GUARD) == 0 &&
              pthread_create(&thread, &attr, run_call, &call) == 0;
        if (ran) pthread_join(thread, NULL);
        pthread_attr_destroy(&attr);
    }
    munmap(memory, size);
    return ran;
}
