/* Learning rates and batches. */
#include "training/less_schedule.h"

#include <math.h>
#include <stdint.h>

enum { LATE_HALVINGS = 6, QUARTERS = 4 };

float lk_less_epoch_rate(const struct lk_less_schedule *s, int epoch) {
    int late = 2 * epoch - s->n_epoch;
    if (s->plain) return ldexpf(s->rate, -(int)((int64_t)epoch * QUARTERS / s->n_epoch));
    return late < 0 ? s->rate
                    : ldexpf(s->rate, -(1 + (int)((int64_t)late * LATE_HALVINGS / s->n_epoch)));
}

int lk_less_batch(const struct lk_less_schedule *s) { return s->plain ? 2 : 1; }
