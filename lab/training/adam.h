/* A step of Adam (Kingma and Ba, 2015), without weight decay. */
#ifndef LK_TRAINING_ADAM_H
#define LK_TRAINING_ADAM_H

#include <stddef.h>
#include <stdint.h>

/* Weights and their two moments, [n] each, and the sum of their gradients since the last step. */
struct lk_adam {
    float *weight, *mean, *square, *gradient;
    size_t n;
};

/* Step number nth, from 1, with the mean of n_sum gradients. The gradients become 0. */
void lk_adam_step(const struct lk_adam *adam, float rate, int64_t nth, int n_sum);

#endif
