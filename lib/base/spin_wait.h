/* How the threads of ggml's pool wait for each other: they spin for a short time, then sleep.
 *
 * ggml's barrier only spins. If another process has the processor of one thread, the others then
 * spin until it is back, and keep it from running if there are more threads than processors.
 * cmake/ggml_wait.h calls these functions in its place (scripts/deps). */
#ifndef LK_BASE_SPIN_WAIT_H
#define LK_BASE_SPIN_WAIT_H

#include <stdbool.h>

/* Return when *value is not `old` any more. The thread that changes it then calls lk_ggml_wake. */
void lk_ggml_wait(int *value, int old);

/* Wake all threads that wait for a change of *value. */
void lk_ggml_wake(int *value);

/* Was ggml compiled so that it calls these functions? */
bool lk_ggml_sleeps(void);

#endif
