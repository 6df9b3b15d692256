#include "recipe/policy.h"

#include "base/splitmix64.h"

#include <stdlib.h>

enum lk_policy_scores lk_policy_needs(const struct lk_policy *policy) {
    if (policy->keep == LK_POLICY_H2O) return LK_SCORES_ALL;
    return policy->keep == LK_POLICY_TOVA ? LK_SCORES_LAST : LK_SCORES_NONE;
}

bool lk_policy_joint(const struct lk_policy *policy) {
    return policy->keep == LK_POLICY_TOVA && !policy->apart;
}

/* A number in [0, 1) for each (salt, head, position). */
static float drawn(uint32_t salt, int head, int32_t pos) {
    uint64_t z =
        ((uint64_t)salt << 40) + ((uint64_t)head << 32) + (uint32_t)pos + lk_splitmix64_step;
    return (float)(lk_splitmix64(z) >> 40) * 0x1p-24f;
}

static int32_t position(const struct lk_policy_rows *rows, int64_t i, int head) {
    return rows->pos ? rows->pos[i * rows->n_head + head] : (int32_t)i;
}

float lk_policy_score(const struct lk_policy *policy, const struct lk_policy_rows *rows, int64_t i,
                      int head) {
    const float *score = rows->score ? rows->score + i * rows->n_head : NULL;
    int32_t pos = position(rows, i, head);
    float sum = 0;
    switch (policy->keep) {
    case LK_POLICY_RANDOM: return drawn(policy->salt, head, pos);
    case LK_POLICY_H2O:
        return policy->mean ? score[head] / (float)(rows->n_tok - pos) : score[head];
    case LK_POLICY_TOVA:
        if (policy->apart) return score[head];
        for (int h = 0; h < rows->n_head; h++) sum += score[h];
        return sum;
    default: return 0;
    }
}

int64_t lk_policy_argmin(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                         int64_t n, int64_t last, int head) {
    int64_t least = last;
    float worth = lk_policy_score(policy, rows, last, head);
    for (int64_t i = 0; i < n; i++) {
        float w = lk_policy_score(policy, rows, i, head);
        if (w > worth || (w == worth && position(rows, i, head) > position(rows, least, head)))
            continue;
        worth = w;
        least = i;
    }
    return least;
}

/* The one of greater worth first; of equal ones the newer. */
static int by_worth(const void *a, const void *b) {
    const struct lk_ranked *x = a, *y = b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    return x->row > y->row ? -1 : 1;
}

static int by_row(const void *a, const void *b) {
    const struct lk_ranked *x = a, *y = b;
    return x->row < y->row ? -1 : 1;
}

void lk_policy_select(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                      int64_t from, int64_t n, int64_t n_keep, int head, struct lk_ranked *order) {
    for (int64_t i = 0; i < n; i++)
        order[i] =
            (struct lk_ranked){lk_policy_score(policy, rows, from + i, head), (int32_t)(from + i)};
    qsort(order, (size_t)n, sizeof *order, by_worth);
    qsort(order, (size_t)n_keep, sizeof *order, by_row);
}
