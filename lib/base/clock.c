/* The clocks of POSIX as plain seconds. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "base/clock.h"

#include <time.h>

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double lk_now(void) { return read_clock(CLOCK_MONOTONIC); }

double lk_thread_cpu_seconds(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

double lk_process_cpu_seconds(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }
