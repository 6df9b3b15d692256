/* What a tuning run holds. */
#ifndef LK_TUNE_TUNE_STATE_H
#define LK_TUNE_TUNE_STATE_H

#include "lowkey_lab.h"
#include "tune/measure_set.h"
#include "tune/tune_model.h"

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
};

/* How lk_measure_set measures for this run. */
struct lk_measure lk_tune_measure_of(struct lk_tune *t);

/* The KL of a recipe that was measured on `text`. */
double lk_tune_measured_kl(const struct lk_tune *t, const struct lk_measure_text *text,
                           const struct lk_buf *recipe);

#endif
