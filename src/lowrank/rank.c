#include "lowrank/rank.h"

#include <math.h>

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
    return next == item->rank ? -1 : ((double)item->error[item->rank - 1] - item->error[next - 1]) / (next - item->rank);
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
            double saving = next_rank(&item[i], quantum) - item[i].rank <= left ? next_saving(&item[i], quantum) : -1;
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
