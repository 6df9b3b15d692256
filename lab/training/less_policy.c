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
            (struct lk_less_policy){{.kind = LK_POLICY_H2O}, 0, budget / 2, budget - budget / 2, 0};
    else if (strcmp(name, "lambda") == 0)
        policy = (struct lk_less_policy){
            {.kind = LK_POLICY_NEWEST}, LAMBDA_SINKS, 0, budget - LAMBDA_SINKS, 0};
    else if (strcmp(name, "tova") == 0)
        policy = (struct lk_less_policy){{.kind = LK_POLICY_TOVA}, 0, budget - 1, 1, 0};
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
    float sum[16] = {0};
    for (int i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
    for (int i = n / 16 * 16; i < n; i++) sum[0] += a[i] * b[i];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++) sum[j] += sum[j + width];
    return sum[0];
}

/* Attention weights of a query for the rows held [n] of its KV head, into `weight` [n]. Returns the
 * logarithm of the sum of exp(score). */
static float weigh_held_rows(const struct lk_less_layer_rows *rows, int head, const float *q,
                             const int32_t *held, int n, float *weight) {
    int d = rows->d_head;
    const float *k = rows->k + (size_t)head * rows->n_tok * d;
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        weight[i] = dot(q, k + (size_t)held[i] * d, d) * rows->scale;
        max = fmaxf(max, weight[i]);
    }
    for (int i = 0; i < n; i++) sum += weight[i] = expf(weight[i] - max);
    for (int i = 0; i < n; i++) weight[i] /= sum;
    return max + logf(sum);
}

/* The weighted mean of the values, into out [d_head]. */
static void mean_of_values(const struct lk_less_layer_rows *rows, int head, const int32_t *held,
                           int n, const float *weight, float *out) {
    int d = rows->d_head;
    const float *v = rows->v + (size_t)head * rows->n_tok * d;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < n; i++) {
        const float *row = v + (size_t)held[i] * d;
        for (int c = 0; c < d; c++) out[c] += weight[i] * row[c];
    }
}

/* One simulation. All heads hold the same number n of rows. */
struct simulation {
    const struct lk_less_policy *policy;
    const struct lk_less_layer_rows *rows;
    const struct lk_less_scratch *scratch;
    const struct lk_less_simulated *out;
    int n;
};

static int32_t *held_rows(const struct simulation *s, int head) {
    return s->scratch->held + (size_t)head * s->rows->n_tok;
}

/* The score of a row for `head`; summed over the heads if they choose together. */
static float row_score(const struct simulation *s, int head, int row) {
    const float *score = s->scratch->score;
    size_t n_tok = (size_t)s->rows->n_tok;
    if (!lk_policy_is_per_layer(&s->policy->rule)) return score[head * n_tok + row];
    float sum = 0;
    for (int h = 0; h < s->rows->n_head_kv; h++) sum += score[h * n_tok + row];
    return sum;
}

/* What a head keeps of the prompt, in the order of positions. */
static void select_prompt_rows(const struct simulation *s, int head) {
    const struct lk_less_policy *policy = s->policy;
    int prompt = policy->prompt, end = prompt - policy->window, n = 0;
    int32_t *held = held_rows(s, head), *evicted_at = s->out->evicted_at + head * s->rows->n_tok;
    float *rank = s->scratch->rank;
    struct lk_scored_row *order = s->scratch->order;
    for (int row = 0; row < prompt; row++) {
        rank[row] = row_score(s, head, row);
        evicted_at[row] = prompt;
    }
    struct lk_policy_rows rows = {.score = rank, .n_head = 1, .n_tok = prompt};
    lk_policy_select(&policy->rule, &rows, policy->sink, end - policy->sink, policy->keep, 0,
                     order);
    for (int row = 0; row < policy->sink; row++) held[n++] = row;
    for (int i = 0; i < policy->keep; i++) held[n++] = order[i].row;
    for (int row = end; row < prompt; row++) held[n++] = row;
    for (int i = 0; i < n; i++) evicted_at[held[i]] = s->rows->n_tok;
}

/* Prefill the prompt. */
static void prefill(struct simulation *s) {
    const struct lk_less_layer_rows *rows = s->rows;
    int prompt = s->policy->prompt, budget = lk_less_policy_budget(s->policy);
    s->n = prompt < budget ? prompt : budget;
    for (int head = 0; head < rows->n_head_kv; head++)
        for (int row = 0; row < prompt; row++)
            s->scratch->score[(size_t)head * rows->n_tok + row] =
                rows->prompt_score[(size_t)row * rows->n_head_kv + head];
    for (int head = 0; head < rows->n_head_kv; head++) {
        if (prompt > budget) {
            select_prompt_rows(s, head);
            continue;
        }
        for (int row = 0; row < prompt; row++) {
            held_rows(s, head)[row] = row;
            s->out->evicted_at[head * rows->n_tok + row] = rows->n_tok;
        }
    }
}

/* The queries of a KV head at position pos attend to the rows it holds, which get scores. */
static void attend(const struct simulation *s, int head, int pos) {
    const struct lk_less_layer_rows *rows = s->rows;
    float weight[LK_LESS_MAX_BUDGET + 1], *score = s->scratch->score + (size_t)head * rows->n_tok;
    const int32_t *held = held_rows(s, head);
    int d = rows->d_head, after = pos - lk_less_policy_first(s->policy);
    if (lk_policy_needed_scores(&s->policy->rule) == LK_SCORES_LAST)
        for (int i = 0; i < s->n; i++) score[held[i]] = 0;
    for (int h = head * rows->group; h < (head + 1) * rows->group; h++) {
        size_t at = (size_t)h * rows->n_tok + pos;
        s->out->log_sum[at] = weigh_held_rows(rows, head, rows->q + at * d, held, s->n, weight);
        if (after >= 0 && after % s->out->stride == 0)
            mean_of_values(rows, head, held, s->n, weight, s->out->sparse + at * d);
        for (int i = 0; i < s->n; i++) score[held[i]] += weight[i];
    }
}

/* Index among the rows held (positions, increasing) of the row to evict after the query at pos. */
static int choose_evicted(const struct simulation *s, int head, int pos) {
    const struct lk_less_policy *policy = s->policy;
    const int32_t *held = held_rows(s, head);
    float attn_scores[LK_LESS_MAX_BUDGET + 1];
    int end = policy->sink; /* of the rows outside the window */
    for (; end < s->n && held[end] <= pos - policy->window; end++)
        attn_scores[end - policy->sink] = row_score(s, head, held[end]);
    struct lk_policy_rows rows = {
        .score = attn_scores, .pos = held + policy->sink, .n_head = 1, .n_tok = pos + 1};
    int last = end - policy->sink - 1;
    return policy->sink + (int)lk_policy_argmin(&policy->rule, &rows, last, last, 0);
}

void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_layer_rows *rows,
                      const struct lk_less_scratch *scratch, const struct lk_less_simulated *out) {
    struct simulation s = {policy, rows, scratch, out, 0};
    int n_tok = rows->n_tok, budget = lk_less_policy_budget(policy);
    memset(scratch->score, 0, (size_t)rows->n_head_kv * n_tok * sizeof *scratch->score);
    if (policy->prompt > 0) prefill(&s);
    for (int pos = policy->prompt; pos < n_tok; pos++) {
        s.n++;
        for (int head = 0; head < rows->n_head_kv; head++) {
            held_rows(&s, head)[s.n - 1] = pos;
            out->evicted_at[head * n_tok + pos] = n_tok;
            attend(&s, head, pos);
        }
        if (s.n <= budget) continue;
        for (int head = 0; head < rows->n_head_kv; head++) {
            int32_t *held = held_rows(&s, head);
            int i = choose_evicted(&s, head, pos);
            out->evicted_at[head * n_tok + held[i]] = pos + 1;
            memmove(held + i, held + i + 1, (size_t)(s.n - i - 1) * sizeof *held);
        }
        s.n--;
    }
}
