/* From a model and a text to a sidecar with bases of low rank (Palu, TALE, "Effectively Compress KV Heads for LLM").
 *
 *   lk_compress_new        choose what is wanted; check it against the model
 *   lk_compress_read       statistics of the text; can be cancelled, saved and taken up again
 *   lk_compress_fit        bases and ranks
 *   lk_compress_write      the sidecar
 *
 * What the methods are by default, and what can be chosen instead:
 *
 *              keys                          values             factors             rank
 *   palu       before and after RoPE         yes                sqrt(Sigma) each    share x width, in steps of a quantum
 *   tale       no                            yes                sqrt(Sigma) each    the same
 *   kvheads    after RoPE, all heads jointly by groups of heads orthonormal         d_head for each group */
#ifndef LK_LOWRANK_COMPRESS_H
#define LK_LOWRANK_COMPRESS_H

#include "base/err.h"
#include "sidecar/basis.h"

#include <stdio.h>

enum lk_method { LK_PALU, LK_TALE, LK_KVHEADS, LK_N_METHOD };

enum lk_svd {
    LK_SVD_WHITENED, /* least error of the rows themselves */
    LK_SVD_PLAIN,    /* of the weights: inputs are taken to be white */
    LK_SVD_OUTPUT, /* least error of scores (K) and of what reaches the residual stream (V); keys before
                         RoPE as whitened */
    LK_SVD_MEAN_POOL, /* average the heads of a group */
    LK_N_SVD
};

/* How ranks are shared out among layers and sides; all keep the mean share that is asked. */
enum lk_rank_search {
    LK_RANK_UNIFORM, /* the same everywhere */
    LK_RANK_ENERGY,  /* where a component more lowers the sum of the relative errors most */
    LK_RANK_FISHER,  /* in proportion to the Fisher information of a group's weights, keys and
                        values together (Palu); see lowrank/fisher.h */
    LK_RANK_FISHER_UNIFORM, /* in proportion to that of a layer's keys or values, the same for
                        all their groups */
    LK_N_RANK_SEARCH
};

extern const char *const lk_method_name[LK_N_METHOD],
    *const lk_svd_name[LK_N_SVD], *const lk_rank_search_name[LK_N_RANK_SEARCH];

struct lk_compress_opts {
    enum lk_method method;
    enum lk_svd svd;
    enum lk_rank_search search;
    double rank;     /* share of the width, 0 to 1; 0: the method's, and LK_SVD_MEAN_POOL's only */
    int32_t quantum; /* ranks are multiples of this; 0: 8 */
    int32_t group;   /* KV heads of a group; 0: the method's; -1: all */
    int32_t n_ctx;   /* tokens of a window; 0: 2048, or what the model was trained for */
    int32_t skip;    /* sinks: rows left out at a window's begin; -1: TALE's 4, 0 for others */
    bool as_code;    /* Fisher information as Palu's code takes it: roots, labels shifted twice, its
                                     way of sharing out */
    int32_t fisher_tokens; /* of the text, that gradients are taken of; 0: 8192 */
    int32_t fisher_ctx;    /* in windows of; 0: 512, or n_ctx where that is less */
    bool mean;             /* bases around the mean */
    bool truncate;         /* keep no more components than the ranks need */
    bool export;           /* refuse what lk_export_kv_heads could not make a model of */
    lk_progress progress;  /* units are tokens, then tokens' worth of fitting */
    void *user;
};

struct lk_compress;

/* Do the options fit the model, for a text of n_tok tokens (SIZE_MAX: not known yet)? LK_E_ARG says which one does
 * not, LK_E_UNSUPPORTED what the model does not allow. For who makes or reads a long text before lk_compress_new,
 * which asks the same. */
lk_status lk_compress_check(lk_model *model, const struct lk_compress_opts *opts, size_t n_tok,
                            lk_err *err);

/* `tok` may be NULL with n_tok 0 where weights alone are looked at: LK_SVD_PLAIN. Memory comes from a ledger of its
 * own. *out is owned: lk_compress_free. `model` must outlive it. */
lk_status lk_compress_new(struct lk_compress **out, lk_model *model,
                          const struct lk_compress_opts *opts, const int32_t *tok, size_t n_tok,
                          lk_err *err);
void lk_compress_free(struct lk_compress *c);

/* Read tok[0..n_tok), the same as before. `path`: where statistics are kept meanwhile, and found again after an
 * interruption; NULL: nowhere. */
lk_status lk_compress_read(struct lk_compress *c, const int32_t *tok, size_t n_tok,
                           const char *path, lk_err *err);

lk_status lk_compress_fit(struct lk_compress *c, lk_err *err);

lk_status lk_compress_write(const struct lk_compress *c, FILE *file, lk_err *err);

/* The bases of a layer after lk_compress_fit; n_group == 0 where that side is not made. Borrowed. */
const struct lk_basis *lk_compress_basis(const struct lk_compress *c, int layer,
                                         enum lk_basis_side side);

/* The model it was made for. */
const lk_model *lk_compress_model(const struct lk_compress *c);

/* Share of the power of a layer's rows that is lost at its ranks. */
double lk_compress_error(const struct lk_compress *c, int layer, enum lk_basis_side side);

#endif
