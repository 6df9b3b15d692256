/* A call that may recurse deeper than the caller's stack allows. */
#ifndef LK_TOKEN_BIG_STACK_H
#define LK_TOKEN_BIG_STACK_H

#include <stdbool.h>
#include <stddef.h>

/* Run fn(arg) on a thread with `stack` bytes of stack, of which only touched pages take memory, and wait
 * for it. False when the system refuses. */
bool lk_call_on_big_stack(void (*fn)(void *arg), void *arg, size_t stack);

#endif
