/* One vector for a text: its hidden states pooled. */
#ifndef LK_ENGINE_POOLING_H
#define LK_ENGINE_POOLING_H

#include "lowkey_serve.h"

/* Pool the rows of x [n_tok][n_embd] into out [n_embd], and scale the result to length 1. pooling:
 * LK_POOLING_MEAN or LK_POOLING_LAST. */
void lk_pool_rows(const float *x, size_t n_tok, size_t n_embd, lk_pooling pooling, float *out);

#endif
