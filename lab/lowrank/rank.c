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

/* What the next quantum of an item saves, by component; less than nothing where it is full. */
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
        double most = -1;
        for (size_t i = 0; i < n; i++) {
            double saving = next_rank(&item[i], quantum) - item[i].rank <= left
                                ? next_saving(&item[i], quantum)
                                : -1;
            if (saving > most) {
                most = saving;
                best = i;
            }
        }
        if (most < 0) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

static double sum_of_widths(const struct lk_rank_item *item, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += item[i].width;
    return sum;
}

/* What an item gets by its score alone: between the least rank and its width. */
static double exact_rank(const struct lk_rank_item *item, double factor, int32_t quantum) {
    double rank = factor * item->score;
    if (rank < quantum) rank = quantum;
    return rank < item->width ? rank : item->width;
}

/* The factor of scores that uses up `total`. */
static double find_factor(const struct lk_rank_item *item, size_t n, double total,
                          int32_t quantum) {
    enum { GROW = 200, HALVE = 100 };
    double low = 0, high = 1e-30;
    for (int step = 0; step < GROW + HALVE; step++) {
        double factor = step < GROW ? high : (low + high) / 2, sum = 0;
        for (size_t i = 0; i < n; i++) sum += exact_rank(&item[i], factor, quantum);
        if (step < GROW)
            high *= sum < total ? 4 : 1;
        else if (sum < total)
            low = factor;
        else
            high = factor;
    }
    return low;
}

/* What an item has by scores beyond its rank, in quanta; less than nothing where it is full. */
static double remainder_of(const struct lk_rank_item *item, double factor, int32_t quantum) {
    if (next_rank(item, quantum) == item->rank) return -INFINITY;
    return (exact_rank(item, factor, quantum) - item->rank) / quantum;
}

void lk_rank_by_score(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    int64_t left = 0;
    for (size_t i = 0; i < n; i++) left += lk_rank_round(item[i].width, share, quantum);
    double factor = find_factor(item, n, (double)left, quantum);
    for (size_t i = 0; i < n; i++) {
        item[i].rank = (int32_t)(exact_rank(&item[i], factor, quantum) / quantum) * quantum;
        if (item[i].rank == 0) item[i].rank = item[i].width; /* narrower than a quantum */
        left -= item[i].rank;
    }
    while (left >= quantum) {
        size_t best = 0;
        double most = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            double here = remainder_of(&item[i], factor, quantum);
            if (here > most) {
                most = here;
                best = i;
            }
        }
        if (most == -INFINITY) break;
        int32_t next = next_rank(&item[best], quantum);
        left -= next - item[best].rank;
        item[best].rank = next;
    }
}

void lk_rank_by_score_as_code(struct lk_rank_item *item, size_t n, double share, int32_t quantum) {
    double total = share * sum_of_widths(item, n), scores = 0, left = total;
    for (size_t i = 0; i < n; i++) scores += item[i].score;
    for (size_t i = 0; i < n; i++) {
        double exact = total * item[i].score / scores;
        item[i].rank = exact < item[i].width ? (int32_t)exact : item[i].width;
        left -= item[i].rank;
    }
    while (left > 0) {
        double done = -INFINITY; /* the last remainder of this round */
        bool given = false;
        size_t last = 0;
        for (size_t turn = 0; turn < n && left != 0; turn++) {
            size_t next = n;
            double least = INFINITY;
            for (size_t i = 0; i < n; i++) {
                double r = total * item[i].score / scores, rest = r - floor(r);
                bool later = rest > done || (rest == done && i > last && turn > 0);
                if (later && rest < least) {
                    least = rest;
                    next = i;
                }
            }
            if (next == n) break;
            done = least;
            last = next;
            if (item[next].rank >= item[next].width) continue;
            item[next].rank++;
            left--;
            given = true;
        }
        if (!given) break;
    }
    for (size_t i = 0; i < n; i++) {
        double quanta = nearbyint((double)item[i].rank /
                                  quantum); /* halves to even, as the default rounding is */
        item[i].rank = (int32_t)(quanta < 1 ? 1 : quanta) * quantum;
        if (item[i].rank > item[i].width) item[i].rank = item[i].width;
    }
}
