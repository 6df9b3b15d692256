/* What the cache of a session holds, layer by layer and level by level, and how good it is.
 *
 * The recipe's session and a full f16 session read the same text as a prompt. Its last tokens, the queries,
 * are then read one by one through both caches, as a decoder would. */
#ifndef LK_EVAL_INSPECT_H
#define LK_EVAL_INSPECT_H

#include "measure/probe.h"

#include <stdio.h>

/* One side of one level in one layer, or a sum of such. */
struct lk_holding {
    char codec[64];         /* as printed; "" in sums of unlike codecs */
    int64_t rows;           /* tokens; in sums over layers, of one layer that has them */
    uint64_t bytes, values; /* values: rows * n_head_kv * d_head, summed */
    double error, power;    /* sums of (x - exact)^2 and exact^2 over its values */
    double mass;            /* share of attention that the queries gave to its rows, mean */
};

struct lk_inspection {
    struct lk_ledger ledger;
    int n_layer, n_level; /* levels: the recipe's and the newest rows */
    size_t n_tok, n_query;
    char (*name)[32];              /* [n_level] */
    struct lk_holding (*at)[2];    /* [n_layer][n_level] of K, V */
    struct lk_holding (*level)[2]; /* [n_level] summed over layers */
    double *hellinger; /* [n_layer] distance of attention, mean over queries and heads */
    lk_session_stats stats;
};

/* Read tok[0..n_tok), the last n_query of them singly; 1 <= n_query < n_tok. Progress in tokens. *out is
 * owned: lk_inspection_free. */
lk_status lk_inspect(struct lk_inspection **out, lk_model *model, const lk_recipe *recipe,
                     const int32_t *tok, size_t n_tok, size_t n_query, lk_progress progress,
                     void *user, lk_err *err);
void lk_inspection_free(struct lk_inspection *inspection);

/* Bits per value and normalised mean squared error; NaN where it holds nothing. */
double lk_holding_bits(const struct lk_holding *holding);
double lk_holding_error(const struct lk_holding *holding);

/* All of it as a picture: layers by levels. */
lk_status lk_inspection_draw(const struct lk_inspection *inspection, const char *title, FILE *out,
                             lk_err *err);

#endif
