/* Sparse policies on exact attention, in plain C: which rows are evicted when, and what attention
 * is without them. Training simulates a policy instead of running a cache with it. */
#ifndef LK_TRAINING_LESS_POLICY_H
#define LK_TRAINING_LESS_POLICY_H

#include "base/err.h"
#include "recipe/policy.h"

enum { LK_LESS_MAX_BUDGET = 4096 };

/* A cache of the `sink` oldest rows, the `window` newest rows, and `keep` rows between them that a
 * rule selects. Their sum is the budget: rows that are kept between steps. */
struct lk_less_policy {
    struct lk_policy rule;
    int sink, keep, window;
};

/* The policy `name` of the papers with `budget` rows: "h2o" (half heavy hitters, half recent),
 * "lambda" (4 sinks, the rest recent) or "tova" (each KV head on its own). LK_E_ARG for another
 * name and for a budget that is too small or too large. */
lk_status lk_less_policy_named(struct lk_less_policy *out, const char *name, int budget,
                               lk_err *err);

static inline int lk_less_policy_budget(const struct lk_less_policy *policy) {
    return policy->sink + policy->keep + policy->window;
}

/* The rows of one KV head and the queries of its group, over n_tok positions. */
struct lk_less_head {
    int n_tok, group, d_head;
    float scale;
    const float *q;     /* [group][n_tok][d_head] */
    const float *k, *v; /* [n_tok][d_head] */
};

/* Run the policy over a head. evicted_at [n_tok]: position of the first query that does not see
 * row i; n_tok if all queries see it. sparse [group][n_tok][d_head] and log_sum [group][n_tok]:
 * attention over the rows that are left. score [n_tok] and held [n_tok] are scratch. */
void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_head *head,
                      int32_t *evicted_at, float *sparse, float *log_sum, float *score,
                      int32_t *held);

#endif
