/* Choosing queries, and the schedule of learning rates. */
#include "training/less_queries.h"

#include "training/less_net.h"
#include "training/random.h"

#include <math.h>
#include <stdint.h>

enum { AFTER_CONTROL = 8 }; /* tokens */
static const float after_control_weight = 8;

int lk_less_stride(int n_ctx, int n_query) {
    int stride = n_ctx / 16 / n_query;
    return stride < 1 ? 1 : stride;
}

/* How the places of a step are used for one policy. */
struct places {
    int n_rows_only, n_query, distance;
};

/* n_query 0: the places are not enough if each takes n_between rows. */
static struct places divide_places(const struct lk_less_source *source,
                                   const struct lk_less_policy *policy, int n_place,
                                   int n_between) {
    /* Rows that query 0 misses. */
    int n_first = lk_less_policy_first(policy) - lk_less_policy_budget(policy),
        n_rows_only = n_first > 1 ? (n_first + n_between - 1) / n_between : 0,
        n_all = lk_less_data_queries(source, policy), n = n_place - n_rows_only;
    if (n > n_all) n = n_all;
    if (n < 1 || (n_all + n - 1) / n * source->stride > n_between) return (struct places){0, 0, 0};
    return (struct places){n_place - n, n, n_all / n};
}

void lk_less_queries_size(struct lk_less_queries *q, const struct lk_less_source *source,
                          int wanted) {
    q->n_query = wanted;
    for (int i = 0; i < source->n_policy; i++) { /* no more places than queries */
        int n = lk_less_data_queries(source, &source->policy[i]);
        if (source->policy[i].prompt == 0 && q->n_query > n) q->n_query = n;
    }
    if (q->n_query < 2) q->n_query = 2;
    q->n_between = 1;
    for (int i = 0; i < source->n_policy; i++)
        while (!divide_places(source, &source->policy[i], q->n_query, q->n_between).n_query)
            q->n_between++;
}

/* Whether one of the tokens up to position pos of a sequence is a control token. */
static bool follows_control(const struct lk_less_queries *q, const int32_t *tok, int pos) {
    for (int back = 0; back <= AFTER_CONTROL && back <= pos; back++)
        if (lk_token_is_control(q->model, tok[pos - back])) return true;
    return false;
}

void lk_less_choose_queries(struct lk_less_queries *q, const struct lk_less_source *source, int seq,
                            uint64_t seed) {
    const struct lk_less_policy *policy = &source->policy[seq % source->n_policy];
    const int32_t *tok = q->tok + (size_t)seq * source->n_ctx;
    struct places p = divide_places(source, policy, q->n_query, q->n_between);
    int offset = seed ? (int)(lk_random_nth(seed, 0) % (uint64_t)p.distance) : p.distance / 2;
    for (int i = 0; i < q->n_query; i++) {
        int nth = i - p.n_rows_only;
        q->query[i] = nth < 0 ? -1 : nth * p.distance + offset;
        q->weight[i] = 1;
        if (nth < 0 || q->plain) continue;
        int pos = lk_less_policy_first(policy) + q->query[i] * source->stride;
        if (follows_control(q, tok, pos)) q->weight[i] = after_control_weight;
    }
}

/* ---- schedule ---- */

enum { LATE_HALVINGS = 6, QUARTERS = 4 };

float lk_less_epoch_rate(const struct lk_less_schedule *s, int epoch) {
    int late = 2 * epoch - s->n_epoch;
    if (s->plain) return ldexpf(s->rate, -(int)((int64_t)epoch * QUARTERS / s->n_epoch));
    return late < 0 ? s->rate
                    : ldexpf(s->rate, -(1 + (int)((int64_t)late * LATE_HALVINGS / s->n_epoch)));
}

int lk_less_batch(const struct lk_less_schedule *s) { return s->plain ? 2 : 1; }
