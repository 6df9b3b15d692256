/* Policies: which rows stay in a level of limited size.
 *
 * A policy gives every row a worth, and the row of least worth goes; of equal ones the oldest. Rows are
 * judged head by head, heads meaning KV heads, from plain arrays: scores that attention gave them, and
 * positions. Nothing here knows of caches or graphs.
 *
 *   newest   none: the oldest row goes
 *   random   a number drawn once for each row and head, so that what stays is a sample of all rows seen
 *   h2o      attention weights summed over all queries that saw the row (H2O; Zhang et al. 2023)
 *            mean: divided by the number of those queries
 *   tova     the last query's attention weight (TOVA; Oren et al. 2024), summed over all heads of the
 *            layer, which therefore keep the same rows; apart: each KV head by itself
 *
 * Weights are summed over the query heads of a KV head: the papers have one query head for each. */
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
};

struct lk_policy {
    uint8_t keep;  /* enum lk_policy_kind */
    bool mean;     /* h2o: mean weight instead of the sum */
    bool apart;    /* tova: each KV head by itself */
    uint32_t salt; /* random: of the draw; differs between layers */
};

/* Which queries' weights a policy wants to hear of. */
enum lk_policy_scores { LK_SCORES_NONE, LK_SCORES_LAST, LK_SCORES_ALL };
enum lk_policy_scores lk_policy_needs(const struct lk_policy *policy);

/* Do all heads of a layer keep the same rows? */
bool lk_policy_joint(const struct lk_policy *policy);

/* What a policy knows of rows. */
struct lk_policy_rows {
    const float *score; /* [n][n_head], or NULL where it hears nothing */
    const int32_t *pos; /* [n][n_head] positions; NULL: row i's is i */
    int n_head;
    int64_t n_tok; /* tokens seen */
};

/* Worth of row i for `head`. */
float lk_policy_score(const struct lk_policy *policy, const struct lk_policy_rows *rows, int64_t i,
                      int head);

/* The row that goes, of rows [0, n) and row `last`, which may lie further on. n >= 0. */
int64_t lk_policy_argmin(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                         int64_t n, int64_t last, int head);

/* The n_keep <= n rows of [from, from + n) that stay, in order, into order[0 .. n_keep). order: [n]. */
struct lk_ranked {
    float worth;
    int32_t row;
};
void lk_policy_select(const struct lk_policy *policy, const struct lk_policy_rows *rows,
                      int64_t from, int64_t n, int64_t n_keep, int head, struct lk_ranked *order);

#endif
