/* Sessions of a cluster next to those of one process. Functions fail the test with the reason. */
#ifndef LK_TESTS_SUPPORT_CLUSTER_H
#define LK_TESTS_SUPPORT_CLUSTER_H

#include "support_ranks.h"

enum { BOTH_CTX = 2600 }; /* tokens of the sessions of compare_both, at most */

/* One model, opened by one process and by a cluster whose ranks are threads. */
struct both {
    struct ranks *ranks;
    lk_cluster *cluster;
    lk_model *single, *divided;
};

void open_both(struct both *both, const char *path, const lk_model_opts *opts, int n_rank);
void close_both(struct both *both);

/* The same tokens to both. */
void eval_both(lk_session *one, lk_session *many, const int32_t *tok, size_t n, bool all);

/* NMSE of the logits of the last evaluation. */
double distance(const lk_session *one, const lk_session *many);

/* What two sessions differ by, at the worst. */
struct worst {
    double moved; /* after one has got the codes of the other from a file: only sums are rounded */
    double apart; /* after each has encoded rows of its own: values near the boundary between two
                     codes differ, and what follows depends on them */
};

/* A prompt, a chunk and single tokens, and moves between one process and several ranks. The
 * sessions are new. */
struct worst compare_both(lk_session *one, lk_session *many, int n_prompt);

#endif
