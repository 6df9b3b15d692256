/* Eviction policies. */
#include "recipe/policy.h"

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>

const struct lk_policy_def *lk_policy_def(int kind) {
    static const struct lk_policy_def def[LK_N_POLICY] = {
        [LK_POLICY_NONE] = {"none", "", NULL, LK_SCORES_NONE},
        [LK_POLICY_NEWEST] = {"newest", "keep by newest", NULL, LK_SCORES_NONE},
        [LK_POLICY_RANDOM] = {"random", "keep by random", NULL, LK_SCORES_NONE},
        [LK_POLICY_H2O] = {"h2o", "keep by h2o", "mean", LK_SCORES_ALL},
        [LK_POLICY_TOVA] = {"tova", "keep by tova", "apart", LK_SCORES_LAST},
        [LK_POLICY_REPLAY] = {"replay", "keep by replay", NULL, LK_SCORES_REPLAY},
    };
    return &def[kind];
}

enum lk_policy_scores lk_policy_needed_scores(const struct lk_policy *policy) {
    return lk_policy_def(policy->kind)->scores;
}

bool lk_policy_is_per_layer(const struct lk_policy *policy) {
    return policy->kind == LK_POLICY_TOVA && !policy->per_head;
}

/* A number in [0, 1) for each (seed, head, position). */
static float random_score(uint32_t seed, int head, int32_t pos) {
    uint64_t z =
        ((uint64_t)seed << 40) + ((uint64_t)head << 32) + (uint32_t)pos + lk_splitmix64_step;
    return (float)(lk_splitmix64(z) >> 40) * 0x1p-24f;
}

static int32_t position_of(const struct lk_policy_rows *rows, int64_t i, int head) {
    return rows->pos ? rows->pos[i * rows->n_head + head] : (int32_t)i;
}

float lk_policy_score(const struct lk_policy *policy, const struct lk_policy_rows *rows, int64_t i,
                      int head) {
    int n = lk_policy_is_per_layer(policy) ? rows->n_head : rows->unit > 1 ? rows->unit : 1;
    int first = head / n * n;
    int32_t pos = position_of(rows, i, head);
    if (policy->kind == LK_POLICY_RANDOM) return random_score(policy->seed, first, pos);
    enum lk_policy_scores needed = lk_policy_needed_scores(policy);
    if (needed == LK_SCORES_NONE) return 0;
    const float *score = rows->score + i * rows->n_head + first;
    float sum = 0;
    for (int h = 0; h < n; h++)
        sum = needed == LK_SCORES_REPLAY ? fmaxf(sum, score[h]) : sum + score[h];
    return policy->mean ? sum / (float)(rows->n_tok - pos) : sum;
}

int64_t lk_policy_argmin(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                         int64_t n, int64_t last, int head) {
    int64_t argmin = last;
    float min = lk_policy_score(policy, rows, last, head);
    for (int64_t i = 0; i < n; i++) {
        float score = lk_policy_score(policy, rows, i, head);
        if (score > min) continue;
        if (score == min && position_of(rows, i, head) > position_of(rows, argmin, head)) continue;
        min = score;
        argmin = i;
    }
    return argmin;
}

/* Highest score first, then newest row. */
static int compare_scores(const void *a, const void *b) {
    const struct lk_scored_row *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->row > y->row ? -1 : 1;
}

static int compare_rows(const void *a, const void *b) {
    const struct lk_scored_row *x = a, *y = b;
    return x->row < y->row ? -1 : 1;
}

void lk_policy_select(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                      int64_t from, int64_t n, int64_t n_keep, int head,
                      struct lk_scored_row *order) {
    for (int64_t i = 0; i < n; i++)
        order[i] = (struct lk_scored_row){lk_policy_score(policy, rows, from + i, head),
                                          (int32_t)(from + i)};
    qsort(order, (size_t)n, sizeof *order, compare_scores);
    qsort(order, (size_t)n_keep, sizeof *order, compare_rows);
}
