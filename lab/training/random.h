/* Reproducible random numbers of training. */
#ifndef LK_TRAINING_RANDOM_H
#define LK_TRAINING_RANDOM_H

#include <stdint.h>

/* The nth number of `seed`. */
uint64_t lk_random_nth(uint64_t seed, uint64_t nth);

/* Shuffle order [n]. */
void lk_shuffle(int32_t *order, int n, uint64_t seed);

#endif
