/* The search for a recipe of a given size.
 *
 *   lk_tune_search_open      the best estimate for each size of 'recent', without measuring
 *   lk_tune_search_extend    the candidates of the first round: also with more bits for keys
 *   lk_tune_search_improve   extend, measure, and in rounds measure variants of the best one
 */
#ifndef LK_TUNE_TUNE_SEARCH_H
#define LK_TUNE_TUNE_SEARCH_H

#include "tune/measure_set.h"

enum { LK_TUNE_MAX_CANDIDATE = 32 };

/* A recipe that may be the result. */
struct lk_tune_candidate {
    struct lk_tune_form form;
    double estimate; /* without a tilt */
    double chosen;   /* what was minimized: with the tilt */
    uint64_t bytes;
    struct lk_buf text;
};

/* Candidates of one search. */
struct lk_tune_search {
    struct lk_tune *t;
    uint64_t max_bytes;        /* as the planner counts them */
    double max_per_token;      /* as measured, if > 0 */
    struct lk_tune_bits *bits; /* [n_layer] scratch */
    struct lk_tune_candidate at[LK_TUNE_MAX_CANDIDATE];
    size_t n;
};

/* Start a search; max_bytes as the planner counts them. lk_tune_search_close afterwards, also after
 * a failure. LK_E_ARG if no recipe is that small or nothing is measured yet, LK_E_NOMEM. */
lk_status lk_tune_search_open(struct lk_tune_search *s, struct lk_tune *t, uint64_t max_bytes,
                              lk_err *err);
void lk_tune_search_close(struct lk_tune_search *s);

/* Index of the candidate with the smallest estimate. */
size_t lk_tune_search_best_estimate(const struct lk_tune_search *s);

/* Add the candidates with more bits for keys; without rounds, only the best estimates stay.
 * LK_E_NOMEM. */
lk_status lk_tune_search_extend(struct lk_tune_search *s, lk_err *err);

/* Extend and measure. s->at[*best] has the smallest measured KL of the candidates that are small
 * enough; if none is, it is any of them. Errors of lk_tune_measure. */
lk_status lk_tune_search_improve(struct lk_tune_search *s, size_t *best, lk_err *err);

#endif
