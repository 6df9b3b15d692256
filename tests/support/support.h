/* Small helpers that several tests share. */
#ifndef LK_TESTS_SUPPORT_H
#define LK_TESTS_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

/* Repeatable pseudo-random numbers. */
struct random {
    uint64_t state;
};
uint32_t random_u32(struct random *r);
float random_uniform(struct random *r); /* [0, 1) */
float random_gauss(struct random *r);
int random_int(struct random *r, int low, int high); /* low..high, both included */

/* Mean squared error of x against ref, divided by ref's mean square. */
double nmse(const float *x, const float *ref, size_t n);

#endif
