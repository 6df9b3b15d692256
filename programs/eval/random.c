#include "eval/random.h"

#include "base/splitmix64.h"

uint64_t lk_random_next(struct lk_random *random) {
    return lk_splitmix64(random->state += lk_splitmix64_step);
}

struct lk_random lk_random_seed(uint64_t seed, const char *name, uint64_t index) {
    struct lk_random random = {seed};
    for (const char *c = name; *c; c++) random.state = lk_random_next(&random) ^ (unsigned char)*c;
    random.state = lk_random_next(&random) ^ index;
    return (struct lk_random){lk_random_next(&random)};
}

size_t lk_random_below(struct lk_random *random, size_t n) {
    return (size_t)((lk_random_next(random) >> 32) * (uint64_t)n >>
                    32); /* n is far below 2^32: hardly biased */
}

void lk_random_order(struct lk_random *random, uint32_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t j = lk_random_below(random, i + 1);
        if (j < i) order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}
