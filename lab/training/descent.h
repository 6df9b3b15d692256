/* Gradient descent: a step of Adam (Kingma and Ba, 2015) without weight decay, and reproducible
 * random numbers. */
#ifndef LK_TRAINING_DESCENT_H
#define LK_TRAINING_DESCENT_H

#include <stddef.h>
#include <stdint.h>

/* Weights and their two moments, [n] each, and the sum of their gradients since the last step. */
struct lk_adam {
    float *weight, *mean, *square, *gradient;
    size_t n;
};

/* Step number nth, from 1, with the mean of n_sum gradients. The gradients become 0. */
void lk_adam_step(const struct lk_adam *adam, float rate, int64_t nth, int n_sum);

/* Shuffle order [n]. */
void lk_shuffle(int32_t *order, int n, uint64_t seed);

#endif
