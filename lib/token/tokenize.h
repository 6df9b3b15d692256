/* Tokenizes text with libllama's vocabulary. */
#ifndef LK_TOKEN_TOKENIZE_H
#define LK_TOKEN_TOKENIZE_H

#include "token/vocab.h"

#include <stdbool.h>
#include <stddef.h>

/* Like lk_tokenize. *tok is owned: free(). */
lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            unsigned flags, size_t n_max, int32_t **tok, size_t *n_tok,
                            lk_err *err);

/* Calls a function that may recurse deeper than the caller's stack allows. */

/* Run fn(arg) on a new thread with a stack of `stack_bytes` and wait for it. Only touched pages of
 * the stack take memory. False if the system refuses the memory or the thread; fn has not run
 * then. */
bool lk_call_with_stack(void (*fn)(void *arg), void *arg, size_t stack_bytes);

#endif
