/* Sparse policies on exact attention, in plain C: which rows are evicted when, and what attention
 * is without them. Training simulates a policy instead of running a cache with it. */
#ifndef LK_TRAINING_LESS_POLICY_H
#define LK_TRAINING_LESS_POLICY_H

#include "base/err.h"
#include "recipe/policy.h"

enum { LK_LESS_MAX_BUDGET = 4096 };

/* A cache of the `sink` oldest rows, the `window` newest rows, and `keep` rows between them that a
 * rule selects. Their sum is the budget: rows that are kept between steps.
 *
 * The first `prompt` tokens are prefilled: they attend to each other exactly, and the rows that the
 * policy does not keep are evicted at once, before query `prompt`. */
struct lk_less_policy {
    struct lk_policy rule;
    int sink, keep, window;
    int prompt; /* 0: every token is evaluated by itself, as in decoding */
};

/* The policy `name` of the papers with `budget` rows: "h2o" (half heavy hitters, half recent),
 * "lambda" (4 sinks, the rest recent) or "tova" (all KV heads together, as in recipes). LK_E_ARG
 * for another name and for a budget that is too small or too large. */
lk_status lk_less_policy_named(struct lk_less_policy *out, const char *name, int budget,
                               lk_err *err);

static inline int lk_less_policy_budget(const struct lk_less_policy *policy) {
    return policy->sink + policy->keep + policy->window;
}

/* Position of the first query that misses a row. */
static inline int lk_less_policy_first(const struct lk_less_policy *policy) {
    int budget = lk_less_policy_budget(policy);
    return policy->prompt > budget ? policy->prompt : budget + 1;
}

/* The rows of a layer and its queries, over n_tok positions. */
struct lk_less_layer_rows {
    int n_tok, n_head_kv, group, d_head;
    float scale;
    const float *q;     /* [n_head_kv * group][n_tok][d_head] */
    const float *k, *v; /* [n_head_kv][n_tok][d_head] */
    /* [prompt][n_head_kv] what the policy ranks the prompt's rows by: attention weights, as
     * lk_policy_needed_scores says; NULL without a prompt */
    const float *prompt_score;
};

/* What a simulation finds. */
struct lk_less_simulated {
    /* [n_head_kv][n_tok] position of the first query that does not see row i; n_tok if all queries
     * see it */
    int32_t *evicted_at;
    /* Attention over the rows that are left, at lk_less_policy_first() and every `stride` positions
     * from there on: [n_head_kv * group][n_tok][d_head]; and the logarithm of its sum, at all
     * positions after the prompt: [n_head_kv * group][n_tok] */
    float *sparse, *log_sum;
    int stride;
};

/* Memory of a simulation. */
struct lk_less_scratch {
    float *score;                /* [n_head_kv][n_tok] */
    int32_t *held;               /* [n_head_kv][n_tok] */
    float *rank;                 /* [n_tok] */
    struct lk_scored_row *order; /* [n_tok] */
};

/* Run the policy over a layer. */
void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_layer_rows *rows,
                      const struct lk_less_scratch *scratch, const struct lk_less_simulated *out);

#endif
