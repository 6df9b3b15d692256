/* How training goes through the sequences: ours, or as in the paper (section 3.2 and appendix A:
 * Adam, 40 epochs whose rate is halved every 10, two sequences in each step). */
#ifndef LK_TRAINING_LESS_SCHEDULE_H
#define LK_TRAINING_LESS_SCHEDULE_H

#include <stdbool.h>

struct lk_less_schedule {
    int n_epoch;
    float rate; /* of the first epoch */
    bool plain; /* as in the paper */
};

/* Adam's learning rate in an epoch, from 0. Ours is constant in the first half of the epochs and
 * halved six times in the second; the paper's is halved after each quarter. */
float lk_less_epoch_rate(const struct lk_less_schedule *schedule, int epoch);

/* Sequences of a step: 1, in the paper 2. */
int lk_less_batch(const struct lk_less_schedule *schedule);

#endif
