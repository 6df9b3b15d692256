/* Training examples for LESS: what one layer's attention sees while a model evaluates a sequence
 * with a full cache, and what a sparse policy would leave of it (LESS, section 3.2).
 *
 * Rows are evicted in an order that is simulated on exact scores. Query `i` of an example is at
 * position lk_less_policy_first() + i * stride: query 0 is the first one that misses a row. With
 * several policies (for example several budgets), sequences use them in turn.
 *
 * An example is one record of a file that is too large for memory. All values are half floats
 * unless stated otherwise:
 *
 *   q          [n_head][n_query][d_head]       queries, as attention receives them
 *   sparse     [n_head][n_query][d_head]       attention over the rows that are left
 *   residual   [n_head][n_query][d_head]       sparse minus full attention
 *   k, v       [n_head_kv][n_evicted][d_head]  evicted rows, in the order of eviction
 *   log_sum    [n_head][n_query]               float: log sum exp(q.k scale) over the rows left
 *   evicted_at [n_head_kv][n_evicted]          int32: position of the first query that does not see
 *                                              the row any more, counted from query 0's, increasing
 *
 * The file is a header and the records, layer by layer and sequence by sequence, each with the size
 * of the longest one. */
#ifndef LK_TRAINING_LESS_DATA_H
#define LK_TRAINING_LESS_DATA_H

#include "engine/session_state.h"
#include "training/less_policy.h"

#include <stdbool.h>

enum { LK_LESS_MAX_POLICIES = 8 };

/* Borrowed from the record that was read. */
struct lk_less_example {
    int n_query, n_evicted, stride;
    const uint16_t *q, *sparse, *residual, *k, *v;
    const float *log_sum;
    const int32_t *evicted_at;
};

/* What the examples of a file were made from; the file's header. Files with equal sources have
 * equal contents. Sources are compared as bytes, so padding is zero. */
struct lk_less_source {
    uint64_t magic, fingerprint, hash; /* fingerprint of the model, hash of the tokens */
    int32_t n_layer, n_head, n_head_kv, d_head;
    int32_t n_ctx, n_seq; /* tokens of a sequence, sequences */
    int32_t stride;       /* positions from one query to the next */
    int32_t n_policy;
    /* Sequence i is simulated with policy i % n_policy; zero after the last one. */
    struct lk_less_policy policy[LK_LESS_MAX_POLICIES];
};

struct lk_less_data {
    struct lk_less_source source;
    struct lk_ledger *ledger;
    int file; /* descriptor */
    size_t record_bytes;
    void *record; /* the current example */
};

struct lk_less_data_opts {
    const char *path;
    struct lk_model *model;
    const struct lk_less_policy *policy; /* [n_policy] */
    int n_policy;
    const int32_t *tok; /* [n_seq][n_ctx] */
    int n_seq, n_ctx, stride;
    lk_progress progress; /* may be NULL; counts sequences x layers */
    void *user;
    struct lk_ledger *ledger; /* borrowed */
};

/* Open the file if it already holds these examples. Otherwise create it, which takes one pass of
 * the model over the text. Memory: queries and attention of one sequence in all layers.
 * LK_E_UNSUPPORTED if the model has sliding windows or ALiBi. `data` is owned:
 * lk_less_data_close. */
lk_status lk_less_data_open(struct lk_less_data *data, const struct lk_less_data_opts *opts,
                            lk_err *err);
void lk_less_data_close(struct lk_less_data *data);

/* Queries and evicted rows of an example that follows this policy. */
int lk_less_data_queries(const struct lk_less_source *source, const struct lk_less_policy *policy);

/* Read one example, valid until the next call. */
lk_status lk_less_data_read(struct lk_less_data *data, int layer, int seq,
                            struct lk_less_example *out, lk_err *err);

/* ---- queries ----
 *
 * What a training step sees: which positions of a sequence are queries, and what each counts.
 *
 * A step has n_query places. If a policy evicts rows before query 0, those of a prompt, the first
 * places take these rows and have no query. The others are queries at equal distances. */
struct lk_less_queries {
    struct lk_model *model;
    const int32_t *tok;     /* [n_seq][n_ctx] the text; borrowed */
    bool plain;             /* all queries count the same */
    int n_query, n_between; /* places, and rows that each takes at most */
    int32_t *query;         /* [n_query] -1: no query; for lk_less_net_set_input */
    float *weight;          /* [n_query] */
};

/* Positions from one query of an example to the next. A sequence gets 16 times the queries of a
 * step; more would make the examples larger and slower, and most would never be used. */
int lk_less_stride(int n_ctx, int n_query);

/* Set n_query, at most `wanted` (2 or more), and n_between, so that the places are enough for every
 * policy of the source. */
void lk_less_queries_size(struct lk_less_queries *q, const struct lk_less_source *source,
                          int wanted);

/* Select the queries of a sequence and their weights. The first query is random in its interval,
 * or, with seed 0, in its middle.
 *
 * The few tokens after a control token of a chat decide whether and how the model answers. The
 * policy alone does little harm there, so that the loss would hardly depend on them: they count
 * several times. */
void lk_less_choose_queries(struct lk_less_queries *q, const struct lk_less_source *source, int seq,
                            uint64_t seed);

/* ---- schedule ----
 *
 * How training goes through the sequences: ours, or as in the paper (section 3.2 and appendix A:
 * Adam, 40 epochs whose rate is halved every 10, two sequences in each step). */

struct lk_less_schedule {
    int n_epoch;
    float rate; /* of the first epoch */
    bool plain; /* as in the paper */
};

/* Adam's learning rate in an epoch, from 0. Ours is constant in the first half of the epochs and
 * halved six times in the second; the paper's is halved after each quarter. */
float lk_less_epoch_rate(const struct lk_less_schedule *schedule, int epoch);

/* Sequences of a step: 1, in the paper 2. */
int lk_less_batch(const struct lk_less_schedule *schedule);

#endif
