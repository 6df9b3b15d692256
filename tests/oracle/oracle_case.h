/* One case of the oracle: a model, a recipe, a sidecar and a script, run by the engine and by the
 * plain account side by side. */
#ifndef LK_TESTS_ORACLE_CASE_H
#define LK_TESTS_ORACLE_CASE_H

#include "random_recipe.h"
#include "tiny_gguf.h"

/* A tiny model on disk, opened by the plain reader. */
struct oracle_model {
    const struct tiny_spec *spec;
    char path[64];
    struct plain_model plain;
    uint64_t fingerprint;
};

struct oracle_models {
    struct oracle_model *model;
    int n;
};

/* Write and open the tiny models. False, with the reason on stderr, if that fails. */
bool open_oracle_models(struct oracle_models *models);
void close_oracle_models(struct oracle_models *models);

struct oracle_case {
    const struct oracle_model *model;
    uint64_t seed;                  /* of the sidecar and the tokens */
    struct random_recipe recipe[2]; /* of sessions 0 and 1 */
    const char *kernels;
    int n_ctx;    /* of the sessions, at most 1,100; 0: 512 */
    bool chunked; /* prompts go through the compressed cache */
    bool full_rank;
    uint64_t noise_seed; /* of the noise in run_case */
    struct op op[MAX_OPS];
    int n_op;
};

/* Allowed NMSE of logits. The account computes in double what the engine computes in float, from
 * the same f16 rows: 1e-5 is generous. Fast kernels round queries to 8 bits for codes of up to 4
 * bits: steps of 1/127 of the largest channel, errors of about 0.6 % of a typical one, so scores of
 * about 2 are off by 0.01 to 0.02, weights by 1 to 2 %, and sums of several values by less: some
 * 1e-4 of their power, rarely 2e-3. */
#define TIGHT 1e-5
#define LOOSE 1e-2

enum verdict { CASE_PASSED, CASE_REJECTED, CASE_FAILED };

struct oracle_result {
    enum verdict verdict;
    char reason[600]; /* why it was rejected, or what differs */
    int op;           /* the operation that failed */
    double worst;     /* largest NMSE of logits */
    double bound;     /* what was allowed */
    int n_tie;        /* choices between scores that are equal but for rounding */
    int n_eval, n_saved, n_unsaved, n_forked, n_evicted;
    unsigned long long spread; /* largest number of bytes in slabs that blocks do not need */
    /* logits of the account [n_logits][n_vocab], if asked for; owned */
    double *logits;
    int n_logits;
    double *score; /* [n_score] of the rows held by the account, if asked for; owned */
    int n_score;
    double score_error; /* of the score that failed, or 0 */
    double sigma_error; /* largest relative error of the engine's channel statistics */
};

/* How much a score differs from the account's: relative, but for tiny ones. */
double oracle_score_error(double score, double expected);
void free_oracle_result(struct oracle_result *result);

/* Run a case. noise > 0 disturbs the account: only its logits and scores are of interest then,
 * which keep = true keeps. With fast kernels its queries are disturbed too, by steps of 8 bits. */
struct oracle_result run_case(const struct oracle_case *c, double noise, bool keep);

#endif
