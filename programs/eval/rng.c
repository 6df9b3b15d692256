/* Random numbers and permutations from the splitmix64 generator. */
#include "eval/rng.h"

#include "base/splitmix64.h"

uint64_t lk_rng_next(struct lk_rng *rng) { return lk_splitmix64_next(&rng->state); }

struct lk_rng lk_rng_seed(uint64_t seed, const char *name, uint64_t index) {
    struct lk_rng rng = {seed};
    for (const char *c = name; *c; c++) rng.state = lk_rng_next(&rng) ^ (unsigned char)*c;
    rng.state = lk_rng_next(&rng) ^ index;
    return (struct lk_rng){lk_rng_next(&rng)};
}

size_t lk_rng_below(struct lk_rng *rng, size_t n) {
    /* n is far below 2^32, so the bias is negligible. */
    return (size_t)((lk_rng_next(rng) >> 32) * (uint64_t)n >> 32);
}

void lk_rng_permutation(struct lk_rng *rng, uint32_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t j = lk_rng_below(rng, i + 1);
        if (j < i) order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}
