/* Measuring a list of recipes on one text, in groups that fit the memory, with a log of results.
 *
 * Each group is one lk_compare: the full cache's logits are computed once for the group, and only
 * the logits of one step are held. After each group the log is saved. */
#ifndef LK_TUNE_MEASURE_SET_H
#define LK_TUNE_MEASURE_SET_H

#include "base/buf.h"
#include "lowkey_lab.h"
#include "tune/tune_log.h"
#include "tune/tune_model.h"

/* A text and how it is evaluated. */
struct lk_measure_text {
    const int32_t *tok; /* [n_tok], borrowed: whole chunks */
    size_t n_tok;
    int32_t chunk;    /* tokens per chunk */
    int32_t n_scored; /* predictions of a chunk (lk_compare_opts) */
    bool prompt;      /* what precedes them is a prompt (lk_compare_opts) */
    uint64_t id;      /* hash of all of this */
};

struct lk_measure_text lk_measure_text_of(const int32_t *tok, size_t n_tok, int32_t chunk,
                                          int32_t n_scored, bool prompt);

struct lk_prompts;

/* Who measures. */
struct lk_measure {
    lk_model *model;
    struct lk_tune_log *log;
    uint64_t max_bytes; /* limit for the sessions of a group */
    lk_progress progress;
    void *user;
    struct lk_prompts
        *prompts; /* the chunks' prompts (prompts.h), or NULL: compute prompts for each group */
};

/* Measure recipe[0..n), texts of recipes, unless the log has them: afterwards it has all of them.
 * Progress counts recipes x tokens. Errors of lk_compare and of the log. */
lk_status lk_measure_set(const struct lk_measure *m, const struct lk_measure_text *text,
                         const struct lk_buf *recipe, size_t n, lk_err *err);

/* What a tuning run holds. */

struct lk_tune {
    struct lk_ledger ledger;
    lk_model *model;
    lk_tune_opts opts; /* with the defaults filled in */
    uint8_t bits[LK_TUNE_MAX_PROBE];
    int32_t *tok; /* [n_chunk][chunk] */
    size_t n_tok;
    struct lk_tune_log log;
    struct lk_measure_text probes, recipes; /* of tok: for one group at a time, and for recipes */
    struct lk_tune_model loss;
    struct lk_tune_cost cost[LK_TUNE_N_RECENT];
    bool measured;
    struct lk_prompts *prompts; /* prompts of an estimate's chunks; NULL: none are needed yet */
};

/* Hold the prompts of t->probes, if they are not. Their sessions are made when they are needed.
 * LK_E_NOMEM. */
lk_status lk_tune_hold(struct lk_tune *t, lk_err *err);

/* How lk_measure_set measures for this run. */
struct lk_measure lk_tune_measure_of(struct lk_tune *t);

/* The KL of a recipe that was measured on `text`. */
double lk_tune_measured_kl(const struct lk_tune *t, const struct lk_measure_text *text,
                           const struct lk_buf *recipe);

#endif
