/* Random numbers that depend on a seed and a position only. */
#include "training/random.h"

#include "base/hash.h"

uint64_t lk_random_nth(uint64_t seed, uint64_t nth) {
    return lk_splitmix64(seed + (nth + 1) * lk_splitmix64_step);
}

void lk_shuffle(int32_t *order, int n, uint64_t seed) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(lk_random_nth(seed, (uint64_t)i) % (uint64_t)(i + 1));
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}
