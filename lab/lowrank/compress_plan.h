/* Options of a compression with their defaults filled in, checked against the model. */
#ifndef LK_LOWRANK_COMPRESS_PLAN_H
#define LK_LOWRANK_COMPRESS_PLAN_H

#include "lowkey_lab.h"
#include "lowrank/statistics.h"

struct lk_compress_plan {
    lk_compress_opts opts;     /* no zero stands for a default any more */
    int32_t group[LK_N_BASIS]; /* KV heads per group; 0: no such basis */
    bool balance;              /* sqrt(Sigma) in both factors */
    bool needs_text, needs_fisher;
    struct lk_statistics_opts statistics; /* if it needs a text */
    size_t fisher_tokens;                 /* tokens to differentiate */
};

/* Errors as lk_compress_check. n_tok: tokens of the text; SIZE_MAX: not known yet. */
lk_status lk_compress_plan_make(struct lk_compress_plan *plan, const struct lk_net *net,
                                const lk_compress_opts *opts, size_t n_tok, lk_err *err);

#endif
