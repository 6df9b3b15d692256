/* Simulation of sparse policies on exact attention. */
#include "training/less_policy.h"

#include <math.h>
#include <string.h>

enum { LAMBDA_SINKS = 4 };

lk_status lk_less_policy_named(struct lk_less_policy *out, const char *name, int budget,
                               lk_err *err) {
    struct lk_less_policy policy;
    if (strcmp(name, "h2o") == 0)
        policy =
            (struct lk_less_policy){{.kind = LK_POLICY_H2O}, 0, budget / 2, budget - budget / 2};
    else if (strcmp(name, "lambda") == 0)
        policy = (struct lk_less_policy){
            {.kind = LK_POLICY_NEWEST}, LAMBDA_SINKS, 0, budget - LAMBDA_SINKS};
    else if (strcmp(name, "tova") == 0)
        policy =
            (struct lk_less_policy){{.kind = LK_POLICY_TOVA, .per_head = true}, 0, budget - 1, 1};
    else
        return lk_fail(err, LK_E_ARG, "unknown policy '%.20s'; use h2o, lambda or tova", name);
    if (budget > LK_LESS_MAX_BUDGET)
        return lk_fail(err, LK_E_ARG, "a budget of %d rows is too large; give at most %d", budget,
                       LK_LESS_MAX_BUDGET);
    if (policy.window < 1)
        return lk_fail(err, LK_E_ARG, "a budget of %d rows is too small for %s; give at least %d",
                       budget, name, policy.sink + 1);
    *out = policy;
    return LK_OK;
}

static float dot(const float *a, const float *b, int n) {
    float sum[8] = {0};
    for (int i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += a[i + j] * b[i + j];
    for (int i = n / 8 * 8; i < n; i++) sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* Attention of one query over the rows held [n]: their weights into `weight` [n], the mean of the
 * values into out [d_head]. Returns the logarithm of the sum of exp(score). */
static float attend_held_rows(const struct lk_less_head *head, const float *q, const int32_t *held,
                              int n, float *weight, float *out) {
    int d = head->d_head;
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        weight[i] = dot(q, head->k + (size_t)held[i] * d, d) * head->scale;
        max = fmaxf(max, weight[i]);
    }
    for (int i = 0; i < n; i++) sum += weight[i] = expf(weight[i] - max);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < n; i++) {
        const float *v = head->v + (size_t)held[i] * d;
        weight[i] /= sum;
        for (int c = 0; c < d; c++) out[c] += weight[i] * v[c];
    }
    return max + logf(sum);
}

/* Index in held [n] (positions, increasing) of the row to evict after the query at position pos. */
static int choose_evicted(const struct lk_less_policy *policy, const int32_t *held, int n, int pos,
                          const float *score) {
    float attn_scores[LK_LESS_MAX_BUDGET + 1];
    int end = policy->sink; /* of the rows outside the window */
    for (; end < n && held[end] <= pos - policy->window; end++)
        attn_scores[end - policy->sink] = score[held[end]];
    struct lk_policy_rows rows = {
        .score = attn_scores, .pos = held + policy->sink, .n_head = 1, .n_tok = pos + 1};
    int last = end - policy->sink - 1;
    return policy->sink + (int)lk_policy_argmin(&policy->rule, &rows, last, last, 0);
}

void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_head *head,
                      int32_t *evicted_at, float *sparse, float *log_sum, float *score,
                      int32_t *held) {
    int n_tok = head->n_tok, d = head->d_head, n = 0, budget = lk_less_policy_budget(policy);
    float weight[LK_LESS_MAX_BUDGET + 1];
    memset(score, 0, (size_t)n_tok * sizeof *score);
    for (int pos = 0; pos < n_tok; pos++) {
        held[n++] = pos;
        evicted_at[pos] = n_tok;
        if (lk_policy_needed_scores(&policy->rule) == LK_SCORES_LAST)
            for (int i = 0; i < n; i++) score[held[i]] = 0;
        for (int h = 0; h < head->group; h++) {
            size_t row = (size_t)h * n_tok + pos;
            log_sum[row] =
                attend_held_rows(head, head->q + row * d, held, n, weight, sparse + row * d);
            for (int i = 0; i < n; i++) score[held[i]] += weight[i];
        }
        if (n <= budget) continue;
        int i = choose_evicted(policy, held, n, pos, score);
        evicted_at[held[i]] = pos + 1;
        memmove(held + i, held + i + 1, (size_t)(n - i - 1) * sizeof *held);
        n--;
    }
}
