/* Divides a batch into groups for several stages. */
#include "engine/microbatch.h"

/* Give each group as many sequences as cost at most `max` together, which every single one does.
 * n: 0 if that takes too many groups. */
static struct lk_microbatches fill_groups(const uint64_t *cost, size_t n, uint64_t max,
                                          int max_group) {
    struct lk_microbatches groups = {.n = 1};
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (sum + cost[i] > max) {
            if (groups.n == max_group) return (struct lk_microbatches){0};
            groups.end[groups.n++ - 1] = i;
            sum = 0;
        }
        sum += cost[i];
    }
    groups.end[groups.n - 1] = n;
    return groups;
}

struct lk_microbatches lk_microbatches_choose(const uint64_t *cost, size_t n, uint64_t weights,
                                              int most, int all) {
    struct lk_microbatches best = {.n = 1, .end = {n}};
    uint64_t sum = 0, largest = 0;
    int max_group = n < LK_MAX_MICROBATCHES ? (int)n : LK_MAX_MICROBATCHES;
    if (most >= all) return best;
    for (size_t i = 0; i < n; i++) {
        sum += cost[i];
        if (cost[i] > largest) largest = cost[i];
    }
    uint64_t slowest = (uint64_t)most, others = (uint64_t)(all - most),
             best_time = (uint64_t)all * (weights + sum);
    for (int n_group = 2; n_group <= max_group; n_group++) {
        uint64_t low = largest, high = sum; /* the smallest possible maximum is in [low, high] */
        if (low < sum / (uint64_t)n_group) low = sum / (uint64_t)n_group;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (fill_groups(cost, n, middle, n_group).n > 0)
                high = middle;
            else
                low = middle + 1;
        }
        struct lk_microbatches groups = fill_groups(cost, n, high, n_group);
        uint64_t time = slowest * ((uint64_t)groups.n * weights + sum) + others * (weights + high);
        if (time >= best_time - best_time / LK_MICROBATCH_GAIN) continue;
        best = groups;
        best_time = time;
    }
    return best;
}
