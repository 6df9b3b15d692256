/* Sparse policies on exact attention, plainly: which rows go when, and what is left without them. */
#include "training/less_data.h"

#include <math.h>
#include <string.h>

enum { LAMBDA_SINKS = 4 };

lk_status lk_less_policy_named(struct lk_less_policy *out, const char *name, int budget,
                               lk_err *err) {
    struct lk_less_policy policy;
    if (strcmp(name, "h2o") == 0)
        policy =
            (struct lk_less_policy){{.keep = LK_POLICY_H2O}, 0, budget / 2, budget - budget / 2};
    else if (strcmp(name, "lambda") == 0)
        policy = (struct lk_less_policy){
            {.keep = LK_POLICY_NEWEST}, LAMBDA_SINKS, 0, budget - LAMBDA_SINKS};
    else if (strcmp(name, "tova") == 0)
        policy = (struct lk_less_policy){{.keep = LK_POLICY_TOVA, .apart = true}, 0, budget - 1, 1};
    else
        return lk_fail(err, LK_E_ARG, "there is no policy '%.20s'; there are h2o, lambda and tova",
                       name);
    if (budget > LK_LESS_MAX_BUDGET)
        return lk_fail(err, LK_E_ARG, "a budget of %d rows is too large; at most %d are possible",
                       budget, LK_LESS_MAX_BUDGET);
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

/* One query over the rows held [n]: their weights into `weight`, the mean of values into out. Returns the
 * logarithm of the sum. */
static float attend(const struct lk_less_head *head, const float *q, const int32_t *held, int n,
                    float *weight, float *out) {
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

/* Index in held [n] (positions in order) of the row that goes after the query at position pos. */
static int choose(const struct lk_less_policy *policy, const int32_t *held, int n, int pos,
                  const float *score) {
    float attn_scores[LK_LESS_MAX_BUDGET + 1];
    int old = policy->sink;
    for (; old < n && held[old] <= pos - policy->window; old++)
        attn_scores[old - policy->sink] = score[held[old]];
    struct lk_policy_rows known = {
        .score = attn_scores, .pos = held + policy->sink, .n_head = 1, .n_tok = pos + 1};
    int last = old - policy->sink - 1;
    return policy->sink + (int)lk_policy_argmin(&policy->rule, &known, last, last, 0);
}

void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_head *head,
                      int32_t *gone, float *sparse, float *log_sum, float *score, int32_t *held) {
    int n_tok = head->n_tok, d = head->d_head, n = 0,
        budget = policy->sink + policy->keep + policy->window;
    float weight[LK_LESS_MAX_BUDGET + 1];
    memset(score, 0, (size_t)n_tok * sizeof *score);
    for (int pos = 0; pos < n_tok; pos++) {
        held[n++] = pos;
        gone[pos] = n_tok;
        if (lk_policy_needs(&policy->rule) == LK_SCORES_LAST)
            for (int i = 0; i < n; i++) score[held[i]] = 0;
        for (int h = 0; h < head->group; h++) {
            size_t row = (size_t)h * n_tok + pos;
            log_sum[row] = attend(head, head->q + row * d, held, n, weight, sparse + row * d);
            for (int i = 0; i < n; i++) score[held[i]] += weight[i];
        }
        if (n <= budget) continue;
        int out = choose(policy, held, n, pos, score);
        gone[held[out]] = pos + 1;
        memmove(held + out, held + out + 1, (size_t)(n - out - 1) * sizeof *held);
        n--;
    }
}
