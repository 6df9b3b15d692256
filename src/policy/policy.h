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
#ifndef LK_POLICY_POLICY_H
#define LK_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lk_keep {
    LK_KEEP_ALL, /* no limit: every row stays */
    LK_KEEP_NEWEST,
    LK_KEEP_RANDOM,
    LK_KEEP_H2O,
    LK_KEEP_TOVA,
};

struct lk_policy {
    uint8_t  keep;  /* enum lk_keep                                  */
    bool     mean;  /* h2o: mean weight instead of the sum           */
    bool     apart; /* tova: each KV head by itself                  */
    uint32_t salt;  /* random: of the draw; differs between layers   */
};

/* Which queries' weights a policy wants to hear of. */
enum lk_hears { LK_HEARS_NOTHING, LK_HEARS_LAST, LK_HEARS_ALL };
enum lk_hears lk_policy_hears(const struct lk_policy *policy);

/* Do all heads of a layer keep the same rows? */
bool lk_policy_joint(const struct lk_policy *policy);

/* What a policy knows of rows. */
struct lk_rows_known {
    const float   *score;  /* [n][n_head], or NULL where it hears nothing */
    const int32_t *pos;    /* [n][n_head] positions; NULL: row i's is i   */
    int            n_head;
    int64_t        n_tok;  /* tokens seen                                 */
};

/* Worth of row i for `head`. */
float lk_policy_worth(const struct lk_policy *policy, const struct lk_rows_known *rows, int64_t i, int head);

/* The row that goes, of rows [0, n) and row `last`, which may lie further on. n >= 0. */
int64_t lk_policy_least(const struct lk_policy *policy, const struct lk_rows_known *rows, int64_t n, int64_t last, int head);

/* The n_keep <= n rows of [from, from + n) that stay, in order, into order[0 .. n_keep). order: [n]. */
struct lk_ranked {
    float   worth;
    int32_t row;
};
void lk_policy_choose(const struct lk_policy *policy, const struct lk_rows_known *rows, int64_t from, int64_t n, int64_t n_keep,
                      int head, struct lk_ranked *order);

#endif
