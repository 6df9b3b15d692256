/* What a model computes in a fixed course of calls, to be compared with another way. */
#ifndef SUPPORT_COMPUTE_H
#define SUPPORT_COMPUTE_H

#include "lowkey.h"

enum { COMPUTE_CTX = 640 }; /* of models with long contexts */

struct results {
    float *logits; /* [n][n_vocab] */
    int n;
    float embedding[4096];
};

/* A prompt, steps of one and of several tokens, drafts that are dropped, a batch of two sessions,
 * and an embedding. tok [COMPUTE_CTX]; n_ctx: at most COMPUTE_CTX. r->logits is owned: free. */
void compute(lk_model *model, const char *recipe, const int32_t *tok, int n_ctx, struct results *r);

/* The first row of logits that differs in bits (max_nmse 0), or by more than max_nmse; -1: none. */
int first_difference(const struct results *a, const struct results *b, int n_vocab,
                     double max_nmse);

#endif
