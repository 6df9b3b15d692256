/* Random numbers and an error measure. */
#include "support.h"

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>

uint32_t random_u32(struct random *r) { return (uint32_t)(lk_splitmix64_next(&r->state) >> 32); }

float random_uniform(struct random *r) { return (random_u32(r) >> 8) * (1.0f / (1 << 24)); }

float random_gauss(struct random *r) {
    float u = random_uniform(r) + 1e-7f, v = random_uniform(r);
    return sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
}

int random_int(struct random *r, int low, int high) {
    return low + (int)(random_u32(r) % (uint32_t)(high - low + 1));
}

double nmse(const float *x, const float *ref, size_t n) {
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        error += (double)(x[i] - ref[i]) * (x[i] - ref[i]);
        power += (double)ref[i] * ref[i];
    }
    return power > 0 ? error / power : error;
}

size_t case_step(void) {
#ifdef LOWKEY_SLOW_BUILD
    enum { STEP = 12 };
#else
    enum { STEP = 4 };
#endif
    const char *step = getenv("LOWKEY_CASE_STEP");
    long n = step ? strtol(step, NULL, 10) : 0;
    return n > 0 ? (size_t)n : STEP;
}

bool case_runs(size_t i) { return i % case_step() == 0; }
