/* Distribution of ranks: uniform, by error, and by score. */
#include "lowrank/rank.h"

#include <math.h>
#include <stdbool.h>

int32_t lk_rank_round(int32_t width, double share, int32_t quantum) {
    int32_t rank = (int32_t)floor(share * width / quantum + 0.5) * quantum;
    if (rank < quantum) rank = quantum;
    return rank < width ? rank : width;
}

void lk_rank_uniform(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    for (size_t i = 0; i < n; i++) item[i].rank = lk_rank_round(item[i].width, share, quantum);
}

static int32_t next_rank(const struct lk_rank_item *item, int32_t quantum) {
    return item->width - item->rank < quantum ? item->width : item->rank + quantum;
}

/* Error saved per component by the item's next quantum; negative if the item is full. */
static double next_saving(const struct lk_rank_item *item, int32_t quantum) {
    int32_t next = next_rank(item, quantum);
    return next == item->rank ? -1
                              : ((double)item->error[item->rank - 1] - item->error[next - 1]) /
                                    (next - item->rank);
}

void lk_rank_by_error(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    int64_t left = 0;
    for (size_t i = 0; i < n; i++) {
        left += lk_rank_round(item[i].width, share, quantum);
        item[i].rank = quantum < item[i].width ? quantum : item[i].width;
        left -= item[i].rank;
    }
    while (left > 0) {
        size_t best = 0;
        double max = -1;
        for (size_t i = 0; i < n; i++) {
            double saving = next_rank(&item[i], quantum) - item[i].rank <= left
                                ? next_saving(&item[i], quantum)
                                : -1;
            if (saving > max) {
                max = saving;
                best = i;
            }
        }
        if (max < 0) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

/* The rank in proportion to the score, limited to one quantum and the width. */
static double proportional_rank(const struct lk_rank_item *item, double factor, int32_t quantum) {
    double rank = factor * item->score;
    if (rank < quantum) rank = quantum;
    return rank < item->width ? rank : item->width;
}

/* The factor for which proportional ranks add up to `total`, by bisection. */
static double find_factor(const struct lk_rank_item *item, size_t n, double total,
                          int32_t quantum) {
    enum { GROW_STEPS = 200, BISECT_STEPS = 100 };
    double low = 0, high = 1e-30;
    for (int step = 0; step < GROW_STEPS + BISECT_STEPS; step++) {
        double factor = step < GROW_STEPS ? high : (low + high) / 2, sum = 0;
        for (size_t i = 0; i < n; i++) sum += proportional_rank(&item[i], factor, quantum);
        if (step < GROW_STEPS)
            high *= sum < total ? 4 : 1;
        else if (sum < total)
            low = factor;
        else
            high = factor;
    }
    return low;
}

/* The rank still missing to the proportional one, in quanta; -infinity if the item is full. */
static double remainder_of(const struct lk_rank_item *item, double factor, int32_t quantum) {
    if (next_rank(item, quantum) == item->rank) return -INFINITY;
    return (proportional_rank(item, factor, quantum) - item->rank) / quantum;
}

void lk_rank_by_score(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    int64_t left = 0;
    for (size_t i = 0; i < n; i++) left += lk_rank_round(item[i].width, share, quantum);
    double factor = find_factor(item, n, (double)left, quantum);
    for (size_t i = 0; i < n; i++) {
        item[i].rank = (int32_t)(proportional_rank(&item[i], factor, quantum) / quantum) * quantum;
        if (item[i].rank == 0) item[i].rank = item[i].width; /* narrower than a quantum */
        left -= item[i].rank;
    }
    while (left >= quantum) {
        size_t best = 0;
        double max = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            double remainder = remainder_of(&item[i], factor, quantum);
            if (remainder > max) {
                max = remainder;
                best = i;
            }
        }
        if (max == -INFINITY) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

void lk_rank_by_score_palu_code(struct lk_rank_item *item, size_t n, double share,
                                int32_t quantum) {
    double widths = 0, scores = 0;
    for (size_t i = 0; i < n; i++) {
        widths += item[i].width;
        scores += item[i].score;
    }
    double total = share * widths, left = total;
    for (size_t i = 0; i < n; i++) {
        double exact = total * item[i].score / scores;
        item[i].rank = exact < item[i].width ? (int32_t)exact : item[i].width;
        left -= item[i].rank;
    }
    while (left > 0) {
        double done = -INFINITY; /* remainder of the item before, in this round */
        bool assigned = false;
        size_t last = 0;
        for (size_t turn = 0; turn < n && left != 0; turn++) {
            size_t next = n;
            double min = INFINITY;
            for (size_t i = 0; i < n; i++) {
                double r = total * item[i].score / scores, rest = r - floor(r);
                bool later = rest > done || (rest == done && i > last && turn > 0);
                if (later && rest < min) {
                    min = rest;
                    next = i;
                }
            }
            if (next == n) break;
            done = min;
            last = next;
            if (item[next].rank >= item[next].width) continue;
            item[next].rank++;
            left--;
            assigned = true;
        }
        if (!assigned) break;
    }
    for (size_t i = 0; i < n; i++) {
        /* The default rounding mode: halves to even. */
        double quanta = nearbyint((double)item[i].rank / quantum);
        item[i].rank = (int32_t)(quanta < 1 ? 1 : quanta) * quantum;
        if (item[i].rank > item[i].width) item[i].rank = item[i].width;
    }
}
