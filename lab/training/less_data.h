/* Examples that LESS's networks are trained with: what one layer's attention saw while a model read a
 * sequence with a full cache, and what a sparse policy would have left of it (LESS, section 3.2).
 *
 * Every KV head has its own order of eviction, which is simulated on exact scores. A policy holds `budget`
 * rows between steps: the first `sink`, the newest `window`, and `keep` of those between. Query `at` of an
 * example is at position budget + 1 + at: the first for which a row is gone. Where there are several policies,
 * as of several budgets, sequences take turns.
 *
 * An example is one record of a file that is too large for memory; half floats unless said otherwise:
 *
 *   q        [n_head][n_query][d_head]    queries, as attention gets them
 *   sparse   [n_head][n_query][d_head]    attention over the rows that are left
 *   residual [n_head][n_query][d_head]    sparse minus full attention
 *   k, v     [n_head_kv][n_gone][d_head]  rows that go, the first first
 *   log_sum  [n_head][n_query]            float: log sum exp(q.k scale) over the rows that are left
 *   gone     [n_head_kv][n_gone]          int32: the first query that does not see the row any more, in order
 *
 * The file is a header and the records, layer by layer and sequence by sequence, each with room for the longest. */
#ifndef LK_TRAINING_LESS_DATA_H
#define LK_TRAINING_LESS_DATA_H

#include "engine/engine.h"
#include "recipe/policy.h"

enum { LK_LESS_MAX_BUDGET = 4096, LK_LESS_MAX_POLICIES = 8 };

/* A cache of `sink` oldest rows, `window` newest, and `keep` between them by a rule. */
struct lk_less_policy {
    struct lk_policy rule;
    int sink, keep, window;
};

/* The policy called `name` as the papers have it with `budget` rows: "h2o" (half heavy, half recent), "lambda"
 * (4 sinks) or "tova" (each KV head by itself). LK_E_ARG for another name or a budget that is too small. */
lk_status lk_less_policy_named(struct lk_less_policy *out, const char *name, int budget,
                               lk_err *err);

/* One KV head's rows and the queries of its group, over n_tok positions. */
struct lk_less_head {
    int n_tok, group, d_head;
    float scale;
    const float *q;     /* [group][n_tok][d_head] */
    const float *k, *v; /* [n_tok][d_head] */
};

/* Run the policy over a head. gone [n_tok]: position of the first query that does not see row i, n_tok
 * where all do. sparse [group][n_tok][d_head] and log_sum [group][n_tok]: attention over what is left.
 * score [n_tok] and held [n_tok] are room. */
void lk_less_simulate(const struct lk_less_policy *policy, const struct lk_less_head *head,
                      int32_t *gone, float *sparse, float *log_sum, float *score, int32_t *held);

struct lk_less_example {
    int n_query, n_gone;
    const uint16_t *q, *sparse, *residual, *k, *v;
    const float *log_sum;
    const int32_t *gone;
};

/* What a file of examples is of. Two that are equal hold the same. */
struct lk_less_source {
    uint64_t magic, fingerprint, hash; /* of the model, of the tokens */
    int32_t n_layer, n_head, n_head_kv, d_head;
    int32_t n_ctx, n_seq; /* tokens of a sequence, sequences */
    int32_t n_policy;
    struct lk_less_policy policy
        [LK_LESS_MAX_POLICIES]; /* sequence i is simulated with policy i % n_policy; 0 behind */
};

struct lk_less_data {
    struct lk_less_source source;
    struct lk_ledger *ledger;
    int file; /* descriptor */
    size_t record_bytes;
    void *record;        /* of the example at hand */
    int n_least, n_most; /* queries of an example, which are as many as rows go */
};

/* Open `path` if it holds these examples already, or make it from tok [n_seq][n_ctx], which takes one pass
 * of `model` over them, with policies [n_policy] in turn. Memory: q and attention of one sequence in all layers. The progress counts
 * sequences times layers. LK_E_UNSUPPORTED where the model has sliding windows or ALiBi.
 * `data` is owned afterwards: lk_less_data_close. */
lk_status lk_less_data_open(struct lk_less_data *data, const char *path, struct lk_model *model,
                            const struct lk_less_policy *policy, int n_policy, const int32_t *tok,
                            int n_seq, int n_ctx, lk_progress progress, void *user,
                            struct lk_ledger *ledger, lk_err *err);
void lk_less_data_close(struct lk_less_data *data);

/* Read an example; it holds until the next call. */
lk_status lk_less_data_read(struct lk_less_data *data, int layer, int seq,
                            struct lk_less_example *out, lk_err *err);

#endif
