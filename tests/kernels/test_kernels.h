/* Helpers of the kernels' tests: random numbers, names of all tables, comparison of results. */
#ifndef LK_TEST_KERNELS_H
#define LK_TEST_KERNELS_H

#include "kernels/kernels.h"
#include "test.h"

/* Every table but the reference. lk_kernels_choose returns NULL for those that this CPU lacks. */
static const char *const tables[] = {"avx2", "avxvnni", "avx512",   "avx512vbmi",
                                     "amx",  "neon",    "neon-i8mm"};
enum { N_TABLE = sizeof tables / sizeof tables[0] };

static uint64_t random_state = 1;

static inline double uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) / 9007199254740992.0;
}

/* Nearly Gaussian, and fast on an emulated CPU. */
static inline float gaussian(void) {
    return (float)((uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508);
}

/* Squared error and squared expected result. */
struct difference {
    double error, all;
};

/* Compare n_row rows of n numbers, `stride` apart. Fails if a result is not finite. */
static inline struct difference compare(const float *got, const float *expect, int n_row,
                                        size_t stride, int n) {
    double error = 0, all = 0;
    for (int i = 0; i < n_row; i++)
        for (int j = 0; j < n; j++) {
            double e = expect[i * stride + j], g = got[i * stride + j];
            assert_true(isfinite(g));
            error += (g - e) * (g - e);
            all += e * e;
        }
    return (struct difference){error, all};
}

#endif
