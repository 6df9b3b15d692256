/* The plain forward pass with the plain account of a cache: what a session computes. */
#ifndef LK_TESTS_PLAIN_SESSION_H
#define LK_TESTS_PLAIN_SESSION_H

#include "plain_cache.h"

#include <stdint.h>

/* Evaluate n tokens that follow the c->n_tok tokens of the cache. They attend to what it holds and
 * to each other; then rows age. logits: [n][n_vocab] */
void plain_eval(struct plain_cache *cache, const int32_t *tok, int n, double *logits);

/* Evaluate a whole prompt in an empty cache: it attends to itself exactly and is stored afterwards.
 * logits: [n_vocab] of the last token. */
void plain_prompt(struct plain_cache *cache, const int32_t *tok, int n, double *logits);

#endif
