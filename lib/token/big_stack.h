/* Calls a function that may recurse deeper than the caller's stack allows. */
#ifndef LK_TOKEN_BIG_STACK_H
#define LK_TOKEN_BIG_STACK_H

#include <stdbool.h>
#include <stddef.h>

/* Run fn(arg) on a new thread with a stack of `stack_bytes` and wait for it. Only touched pages of
 * the stack take memory. False if the system refuses the memory or the thread; fn has not run
 * then. */
bool lk_call_with_stack(void (*fn)(void *arg), void *arg, size_t stack_bytes);

#endif
