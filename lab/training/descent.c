/* Adam: moments with bias correction. Random numbers that depend on a seed and a position only. */
#include "training/descent.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

void lk_adam_step(const struct lk_adam *adam, float rate, int64_t nth, int n_sum) {
    const float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
    float scale = 1 / (float)n_sum, of_mean = (float)(1 / (1 - pow(beta1, (double)nth))),
          of_square = (float)(1 / (1 - pow(beta2, (double)nth)));
    float *mean = adam->mean, *square = adam->square;
    for (size_t i = 0; i < adam->n; i++) {
        float g = adam->gradient[i] * scale;
        mean[i] = beta1 * mean[i] + (1 - beta1) * g;
        square[i] = beta2 * square[i] + (1 - beta2) * g * g;
        adam->weight[i] -= rate * mean[i] * of_mean / (sqrtf(square[i] * of_square) + epsilon);
    }
    memset(adam->gradient, 0, adam->n * sizeof(float));
}

void lk_shuffle(int32_t *order, int n, uint64_t seed) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(lk_splitmix64_nth(seed, (uint64_t)i) % (uint64_t)(i + 1));
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}
