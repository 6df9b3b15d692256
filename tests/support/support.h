/* Random numbers and an error measure for tests. */
#ifndef LK_TESTS_SUPPORT_H
#define LK_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reproducible pseudo-random numbers; `state` is the seed. */
struct random {
    uint64_t state;
};
uint32_t random_u32(struct random *r);
float random_uniform(struct random *r);              /* in [0, 1) */
float random_gauss(struct random *r);                /* mean 0, variance 1 */
int random_int(struct random *r, int low, int high); /* low to high, both included */

/* Normalized mean squared error: sum of (x - ref)^2 divided by sum of ref^2. x, ref: [n]. */
double nmse(const float *x, const float *ref, size_t n);

/* Of a long loop over similar cases, one in this many runs: the number in the environment variable
 * LOWKEY_CASE_STEP, or else 4, or 12 with sanitizers and in an emulator. 1: all of them, as in
 * `scripts/test long`. */
size_t case_step(void);
bool case_runs(size_t i);

#endif
