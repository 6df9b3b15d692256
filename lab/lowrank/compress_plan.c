/* Defaults and checks of the options of a compression. */
#include "lowrank/compress_plan.h"

#include "lowrank/fisher.h"
#include "lowrank/rank.h"

#include <string.h>

/* The largest divisor of n that is at most `max`. */
static int largest_divisor(int n, int max) {
    int d = max < n ? max : n;
    while (n % d != 0) d--;
    return d;
}

/* KV heads per group. Defaults: for palu and tale four, or the nearest smaller divisor; for
 * kvheads, which keeps one head's width of each group, two or the next larger divisor; for oscar
 * one. */
static lk_status resolve_group(const lk_compress_opts *opts, int n_head_kv, int *group,
                               lk_err *err) {
    int n = n_head_kv;
    *group = opts->group < 0 ? n : opts->group;
    if (*group > 0)
        return n % *group == 0 ? LK_OK
                               : lk_fail(err, LK_E_ARG,
                                         "groups of %d heads do not divide the model's %d KV "
                                         "heads; give a divisor, or 'all'",
                                         *group, n);
    if (opts->method == LK_METHOD_OSCAR) {
        *group = 1;
        return LK_OK;
    }
    if (opts->method != LK_METHOD_KVHEADS) {
        *group = largest_divisor(n, 4);
        return LK_OK;
    }
    if (n == 1) return lk_fail(err, LK_E_ARG, "this model has only one KV head: nothing to merge");
    for (*group = 2; n % *group != 0;) (*group)++;
    return LK_OK;
}

static lk_status check_opts(const lk_compress_opts *opts, size_t n_tok, lk_err *err) {
    if (opts->rank < 0 || opts->rank > 1)
        return lk_fail(err, LK_E_ARG, "a rank of %.0f%% is not between 0%% and 100%%",
                       100 * opts->rank);
    if (opts->mean && n_tok == 0)
        return lk_fail(err, LK_E_ARG, "subtracting the mean needs a text");
    if (opts->method == LK_METHOD_OSCAR &&
        (opts->svd != LK_SVD_WHITENED || opts->mean || opts->equalize))
        return lk_fail(err, LK_E_ARG,
                       "oscar rotates rows by eigenvectors of queries and weighted values; remove "
                       "--svd, --mean and --equalize");
    if (opts->equalize && (opts->svd == LK_SVD_PLAIN || opts->method == LK_METHOD_KVHEADS))
        return lk_fail(
            err, LK_E_ARG,
            "equalize needs another method than kvheads, and a basis of rows, not of weights");
    if (opts->quantum < 0)
        return lk_fail(err, LK_E_ARG, "ranks cannot be multiples of %d", opts->quantum);
    return LK_OK;
}

static void fill_defaults(lk_compress_opts *opts, const struct lk_hparams *hp, int group) {
    bool one_head_per_group =
        opts->svd == LK_SVD_MEAN_POOL || (opts->method == LK_METHOD_KVHEADS && opts->rank == 0);
    if (one_head_per_group) opts->rank = 1.0 / group;
    if (opts->rank == 0) opts->rank = opts->method == LK_METHOD_OSCAR ? 1 : 0.5;
    if (opts->quantum == 0) opts->quantum = 8;
    if (opts->n_ctx == 0) opts->n_ctx = hp->n_ctx_train < 2048 ? hp->n_ctx_train : 2048;
    if (opts->n_skip <= 0)
        opts->n_skip = opts->n_skip == 0 && opts->method == LK_METHOD_TALE ? 4 : 0;
}

/* Which bases to make, and the heads of their groups. */
static void choose_bases(struct lk_compress_plan *plan, const struct lk_hparams *hp, int group) {
    const lk_compress_opts *opts = &plan->opts;
    bool rotates = hp->rope_mode >= 0, plain = opts->svd == LK_SVD_PLAIN;
    bool has_k = opts->method != LK_METHOD_TALE;
    /* Keys after RoPE cannot be fused into fewer heads, and a joint basis of all heads approximates
     * them better ("Effectively Compress KV Heads", section 3.4). */
    int k_group = opts->method == LK_METHOD_KVHEADS && rotates && opts->svd != LK_SVD_MEAN_POOL
                      ? hp->n_head_kv
                      : group;
    plan->group[LK_BASIS_V] = group;
    if (has_k && !(rotates && plain)) plan->group[LK_BASIS_K] = k_group;
    if (has_k && rotates && (opts->method == LK_METHOD_PALU || plain))
        plan->group[LK_BASIS_KPRE] = k_group;
}

static lk_status plan_fisher(struct lk_compress_plan *plan, const struct lk_net *net, size_t n_tok,
                             lk_err *err) {
    lk_compress_opts *opts = &plan->opts;
    if (opts->fisher_ctx == 0) opts->fisher_ctx = opts->n_ctx < 512 ? opts->n_ctx : 512;
    plan->fisher_tokens = opts->fisher_tokens == 0 ? 8192 : (size_t)opts->fisher_tokens;
    if (plan->fisher_tokens > n_tok) plan->fisher_tokens = n_tok;
    return lk_fisher_check(net, err);
}

lk_status lk_compress_plan_make(struct lk_compress_plan *plan, const struct lk_net *net,
                                const lk_compress_opts *opts, size_t n_tok, lk_err *err) {
    int group = 0;
    *plan = (struct lk_compress_plan){.opts = *opts};
    lk_status status = check_opts(opts, n_tok, err);
    if (!status) status = resolve_group(opts, net->hp.n_head_kv, &group, err);
    if (status) return status;
    if (opts->svd == LK_SVD_MEAN_POOL && opts->rank > 0)
        return lk_fail(err, LK_E_ARG,
                       "mean-pool keeps one head's width of each group; remove --rank");
    fill_defaults(&plan->opts, &net->hp, group);
    choose_bases(plan, &net->hp, group);
    plan->balance = opts->method != LK_METHOD_KVHEADS && opts->method != LK_METHOD_OSCAR &&
                    opts->svd != LK_SVD_MEAN_POOL;
    plan->needs_text = n_tok > 0 || opts->svd != LK_SVD_PLAIN;
    plan->needs_fisher = opts->ranks == LK_RANK_FISHER;
    /* Queries are collected even if unused: saved statistics then serve every kind of basis. */
    plan->statistics = (struct lk_statistics_opts){.queries = plan->group[LK_BASIS_K] > 0,
                                                   .scored = opts->method == LK_METHOD_OSCAR,
                                                   .n_ctx = plan->opts.n_ctx,
                                                   .n_skip = plan->opts.n_skip};
    memcpy(plan->statistics.group, plan->group, sizeof plan->group);
    if (!status && plan->needs_text)
        status = lk_statistics_check(&net->hp, &plan->statistics, n_tok, err);
    if (!status && plan->needs_fisher) status = plan_fisher(plan, net, n_tok, err);
    return status;
}
