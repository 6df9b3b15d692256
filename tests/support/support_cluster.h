/* Sessions of a cluster next to one process's. Functions fail the test with the reason. */
#ifndef LK_TESTS_SUPPORT_CLUSTER_H
#define LK_TESTS_SUPPORT_CLUSTER_H

#include "cluster/cluster.h"
#include "support_ranks.h"

enum {
    BOTH_CTX = 2600,              /* tokens of the sessions of compare_both, at most */
    BOTH_MAX_CTX = 96 * LK_STRIPE /* of those of open_tiny_stages */
};

/* One model, opened by one process and by a cluster whose ranks are threads. */
struct both {
    struct ranks *ranks;
    lk_cluster *cluster;
    lk_model *single, *divided;
};

void open_both(struct both *both, const char *path, const lk_model_opts *opts, int n_rank,
               int n_stage);
/* A tiny preset, with room for BOTH_MAX_CTX tokens. kernels: NULL for the fastest. */
void open_tiny_stages(struct both *both, const char *preset, int n_rank, int n_stage, bool sidecar,
                      const char *kernels);
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

/* compare_both for a recipe, and with a check of its result. */
struct worst compare_recipe(struct both *both, const char *recipe, int n_prompt);
/* A step over the same codes differs by the rounding of sums, and of queries in fast kernels.
 * Without codes nothing else does. */
void check_recipe(struct both *both, const char *model, const char *recipe, int n_prompt);

/* Sessions of both models with options, in their initial state. */
struct pair {
    lk_recipe *r1, *r2;
    lk_session *one, *many;
};
struct pair open_pair(struct both *both, const char *recipe, const lk_session_opts *opts);
void close_pair(struct pair *pair);

/* lk_session_sync of both. They reuse the same number of tokens, which is `reused` unless that is
 * SIZE_MAX, and their logits have an NMSE of at most max. */
void sync_pair(struct pair *pair, const int32_t *tok, size_t n, size_t reused, double max);

/* Going back to checkpoints, prompts through the cache, copies, drafts and batches: logits differ
 * by an NMSE of at most `max`. */
void compare_operations(const char *preset, int n_rank, int n_stage, double max);

/* Checkpoints in files that one process or several ranks have saved, and the other one loads: the
 * file that it saves again is the same. Going back to each checkpoint evaluates none of its tokens,
 * and the next logits differ by an NMSE of at most `max`, as they do after a change of levels of
 * 1e-2 if max is not 0. If cases are sampled (case_runs), one of the four ways runs; `turn` chooses
 * it. */
void compare_saved_checkpoints(struct both *both, const char *recipe, int turn, double max);

#endif
