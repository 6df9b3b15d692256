/* What a training step sees: which positions of a sequence are queries, what each counts, and the
 * learning rate.
 *
 * A step has n_query places. If a policy evicts rows before query 0, those of a prompt, the first
 * places take these rows and have no query. The others are queries at equal distances. */
#ifndef LK_TRAINING_LESS_QUERIES_H
#define LK_TRAINING_LESS_QUERIES_H

#include "training/less_data.h"

#include <stdbool.h>

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
