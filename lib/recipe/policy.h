/* Policies: which rows stay in a level of limited size.
 *
 * A policy gives every row a score and evicts the row with the lowest score, the oldest one if
 * several are equal. It judges each unit of KV heads separately: one head, or the adjacent heads
 * that share a latent and therefore keep the same rows. Attention weights of a unit are summed over
 * its heads. Policies work on plain arrays and depend on neither caches nor graphs.
 *
 *   newest   no score: evicts the oldest row
 *   random   a random number per row and unit, drawn once: the kept rows are a sample of all rows
 *            seen
 *   h2o      attention weights summed over all queries that saw the row (H2O; Zhang et al. 2023).
 *            mean: divided by the number of those queries
 *   tova     attention weight of the last query (TOVA; Oren et al. 2024), summed over all heads of
 *            the layer, so that all heads keep the same rows. per_head ('apart' in recipes): each
 *            unit by itself
 *   replay   the largest attention weight that any query gives the row when the prompt is read
 *            again, over all query heads of the unit (KVzip; Kim et al. 2025). Later rows have
 *            LK_NOT_REPLAYED: they are evicted after all rows of the prompt, the oldest first
 *
 * h2o and tova sum the weights over the query heads of a KV head. In the papers each KV head has
 * one query head. */
#ifndef LK_RECIPE_POLICY_H
#define LK_RECIPE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lk_policy_kind {
    LK_POLICY_NONE, /* no limit: every row stays */
    LK_POLICY_NEWEST,
    LK_POLICY_RANDOM,
    LK_POLICY_H2O,
    LK_POLICY_TOVA,
    LK_POLICY_REPLAY,
    LK_N_POLICY
};

struct lk_policy {
    uint8_t kind;  /* enum lk_policy_kind */
    bool mean;     /* h2o: mean weight instead of the sum */
    bool per_head; /* tova: each unit by itself */
    uint32_t seed; /* random: differs between layers */
};

/* The queries whose attention weights a policy needs. */
enum lk_policy_scores {
    LK_SCORES_NONE,
    LK_SCORES_LAST,
    LK_SCORES_ALL,
    LK_SCORES_REPLAY /* of a prompt's replay (engine/replay.h), and of no later step */
};

/* The score of a row that is not of a replayed prompt: above any weight. */
#define LK_NOT_REPLAYED 2.0f

/* What a kind of policy is: the table in policy.c, from which recipes take all that they know of
 * policies. */
struct lk_policy_def {
    const char *name;    /* in recipes */
    const char *feature; /* in the table of combinations */
    const char *option;  /* that recipes may add in parentheses, or NULL */
    enum lk_policy_scores scores;
};

/* kind: below LK_N_POLICY. Static. */
const struct lk_policy_def *lk_policy_def(int kind);

enum lk_policy_scores lk_policy_needed_scores(const struct lk_policy *policy);

/* Whether all heads of a layer keep the same rows. */
bool lk_policy_is_per_layer(const struct lk_policy *policy);

/* The rows that a policy judges. */
struct lk_policy_rows {
    const float *score; /* [n][n_head], or NULL if the policy needs no scores */
    const int32_t *pos; /* [n][n_head] positions; NULL: the position of row i is i */
    int n_head;
    int unit;      /* heads that keep the same rows; a divisor of n_head, or 0: 1 */
    int64_t n_tok; /* tokens seen so far */
};

/* Score of row i for the unit of `head`. */
float lk_policy_score(const struct lk_policy *policy, const struct lk_policy_rows *rows, int64_t i,
                      int head);

/* The row to evict among rows [0, n) and row `last`, which may be at n or later. n >= 0. */
int64_t lk_policy_argmin(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                         int64_t n, int64_t last, int head);

struct lk_scored_row {
    float score;
    int32_t row;
};

/* Select the n_keep <= n rows of [from, from + n) that stay. They are written to order[0 .. n_keep)
 * in the order of their positions. order: [n], the rest is scratch. */
void lk_policy_select(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                      int64_t from, int64_t n, int64_t n_keep, int head,
                      struct lk_scored_row *order);

#endif
