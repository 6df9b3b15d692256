/* Random numbers for items. The same seed gives the same items on every machine. */
#ifndef LK_EVAL_RNG_H
#define LK_EVAL_RNG_H

#include <stddef.h>
#include <stdint.h>

struct lk_rng {
    uint64_t state;
};

/* The generator of one item: the index-th of the task (or other purpose) `name`, with the user's
 * seed. */
struct lk_rng lk_rng_seed(uint64_t seed, const char *name, uint64_t index);

uint64_t lk_rng_next(struct lk_rng *rng);

/* A number from 0 to n - 1, n > 0. */
size_t lk_rng_below(struct lk_rng *rng, size_t n);

/* Fill order [n] with a random permutation of 0 to n - 1. */
void lk_rng_permutation(struct lk_rng *rng, uint32_t *order, size_t n);

#endif
