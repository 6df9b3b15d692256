/* Repeatable choices: the same seed gives the same items on every machine. */
#ifndef LK_EVAL_RANDOM_H
#define LK_EVAL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct lk_random {
    uint64_t state;
};

/* The numbers of one item: of the index-th item of what `name` names, under a user's seed. */
struct lk_random lk_random_seed(uint64_t seed, const char *name, uint64_t index);

uint64_t lk_random_next(struct lk_random *random);

/* One of 0 .. n - 1, n > 0. */
size_t lk_random_below(struct lk_random *random, size_t n);

/* Put the numbers 0 .. n - 1 into order [n], each once, in random order. */
void lk_random_order(struct lk_random *random, uint32_t *order, size_t n);

#endif
