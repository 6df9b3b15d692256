/* Included before each source of ggml by scripts/deps, which also replaces two lines of
 * ggml_barrier in ggml-cpu.c by the calls below. The barrier then waits in lk_ggml_wait
 * (lib/base/spin_wait.h), which sleeps after a short time. These functions are weak: without
 * lowkey the barrier spins. */
#ifndef LK_GGML_WAIT_H
#define LK_GGML_WAIT_H

#ifndef __cplusplus

extern void lk_ggml_wait(int *value, int old) __attribute__((weak));
extern void lk_ggml_wake(int *value) __attribute__((weak));

/* Exists if ggml calls these functions. */
__attribute__((weak)) char lk_ggml_waits;

/* One round of ggml_barrier's loop. */
#define LK_GGML_WAIT(value, old)                                                                   \
    do {                                                                                           \
        if (lk_ggml_wait)                                                                          \
            lk_ggml_wait((int *)&(value), old);                                                    \
        else                                                                                       \
            ggml_thread_cpu_relax();                                                               \
    } while (0)

/* After the last thread has arrived. */
#define LK_GGML_WAKE(value)                                                                        \
    do {                                                                                           \
        if (lk_ggml_wake) lk_ggml_wake((int *)&(value));                                           \
    } while (0)

#endif

#endif
