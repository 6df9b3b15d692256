#include "lowrank/export.h"
#include "lowrank/fisher.h"
#include "lowrank/fit.h"
#include "lowrank/linalg.h"
#include "lowrank/rank.h"
#include "lowrank/statistics.h"
#include "lowrank/weight_moments.h"
#include "sidecar/sidecar.h"

#include <string.h>

const char *const lk_method_name[LK_N_METHOD] = {
    [LK_PALU] = "palu", [LK_TALE] = "tale", [LK_KVHEADS] = "kvheads"};
const char *const lk_svd_name[LK_N_SVD] = {[LK_SVD_WHITENED] = "whitened",
                                           [LK_SVD_PLAIN] = "plain",
                                           [LK_SVD_OUTPUT] = "output",
                                           [LK_SVD_MEAN_POOL] = "mean-pool"};
const char *const lk_rank_search_name[LK_N_RANK_SEARCH] = {[LK_RANK_UNIFORM] = "uniform",
                                                           [LK_RANK_ENERGY] = "energy",
                                                           [LK_RANK_FISHER] = "fisher",
                                                           [LK_RANK_FISHER_UNIFORM] =
                                                               "fisher-uniform"};

/* A layer's basis in the making: its arrays in one piece, as lk_basis wants them, all components kept. */
struct made {
    struct lk_basis basis;
    float *down, *up, *mean, *error; /* up == down where both are the same; mean may be NULL */
    int32_t *rank;
    double *power; /* [n_group] sum |x|^2 */
    void *memory;
    size_t bytes;
};

struct lk_compress {
    struct lk_ledger ledger;
    struct lk_model *model;
    const struct lk_hparams *hp;
    struct lk_compress_opts opts;
    int32_t group[LK_N_BASIS]; /* heads; 0: not made */
    bool balance;
    struct lk_statistics *statistics; /* NULL without a text */
    struct lk_fisher fisher;          /* empty where ranks want none */
    size_t fisher_tokens;             /* that gradients are taken of */
    struct made *made[LK_N_BASIS];    /* [n_layer] */
    uint64_t text_hash, n_tok;
};

/* ---- choosing ---- */

/* The largest divisor of n that is at most `most`. */
static int divisor(int n, int most) {
    int d = most < n ? most : n;
    while (n % d != 0) d--;
    return d;
}

/* How many heads are grouped when nobody says: Palu's four, or as near as the model allows; two or the next possible
 * number for KV heads, which keeps one head's width of each group. */
static lk_status choose_group(const struct lk_compress *c, int *group, lk_err *err) {
    int n = c->hp->n_head_kv;
    *group = c->opts.group;
    if (*group < 0) *group = n;
    if (*group > 0)
        return n % *group == 0 ? LK_OK
                               : lk_fail(err, LK_E_ARG,
                                         "groups of %d heads do not divide the model's %d KV "
                                         "heads; give a divisor, or 'all'",
                                         *group, n);
    if (c->opts.method != LK_KVHEADS) {
        *group = divisor(n, 4);
        return LK_OK;
    }
    if (n == 1)
        return lk_fail(err, LK_E_ARG, "this model has one KV head: there are none to merge");
    for (*group = 2; n % *group != 0;) (*group)++;
    return LK_OK;
}

static lk_status check_export(const struct lk_compress *c, lk_err *err) {
    int32_t group = c->group[LK_BASIS_V], d = c->hp->d_head;
    lk_status status = lk_export_check(c->model->net, err);
    if (status != LK_OK) return status;
    if (c->group[LK_BASIS_K] != group || c->opts.mean)
        return lk_fail(err, LK_E_ARG,
                       "export needs bases of keys and values in the same groups, without a mean; "
                       "use --method kvheads");
    if (lk_rank_round(group * d, c->opts.rank, c->opts.quantum) != d)
        return lk_fail(err, LK_E_ARG,
                       "export needs ranks of one head's width, %d; use --method kvheads and leave "
                       "--rank and --quantum away",
                       d);
    return LK_OK;
}

static lk_status choose(struct lk_compress *c, lk_err *err) {
    bool rotates = c->hp->rope_mode >= 0, plain = c->opts.svd == LK_SVD_PLAIN;
    int group = 0;
    if (c->opts.rank < 0 || c->opts.rank > 1)
        return lk_fail(err, LK_E_ARG,
                       "a rank of %.0f%% is not possible; give more than 0%% and at most 100%%",
                       100 * c->opts.rank);
    if (c->opts.mean && c->n_tok == 0) return lk_fail(err, LK_E_ARG, "a mean needs a text");
    if (c->opts.quantum < 0)
        return lk_fail(err, LK_E_ARG, "ranks cannot be multiples of %d", c->opts.quantum);
    lk_status status = choose_group(c, &group, err);
    if (status != LK_OK) return status;
    if (c->opts.svd == LK_SVD_MEAN_POOL && c->opts.rank > 0)
        return lk_fail(err, LK_E_ARG,
                       "mean-pool keeps one head's width of each group; leave --rank away");
    bool one_head =
        c->opts.svd == LK_SVD_MEAN_POOL || (c->opts.method == LK_KVHEADS && c->opts.rank == 0);
    if (one_head) c->opts.rank = 1.0 / group; /* of each group */
    if (c->opts.rank == 0) c->opts.rank = 0.5;
    if (c->opts.quantum == 0) c->opts.quantum = 8;
    if (c->opts.n_ctx == 0) c->opts.n_ctx = c->hp->n_ctx_train < 2048 ? c->hp->n_ctx_train : 2048;
    if (c->opts.skip < 0) c->opts.skip = c->opts.method == LK_TALE ? 4 : 0;
    c->balance = c->opts.method != LK_KVHEADS && c->opts.svd != LK_SVD_MEAN_POOL;
    c->group[LK_BASIS_V] = group;
    /* Keys behind RoPE cannot be fused into fewer heads anyway, and are better approximated jointly (KV heads, section 3.4). */
    int keys = c->opts.method == LK_KVHEADS && rotates && c->opts.svd != LK_SVD_MEAN_POOL
                   ? c->hp->n_head_kv
                   : group;
    bool any = c->opts.method != LK_TALE;
    if (any && !(rotates && plain)) c->group[LK_BASIS_K] = keys;
    if (any && rotates && (c->opts.method == LK_PALU || plain)) c->group[LK_BASIS_KPRE] = keys;
    return c->opts.export ? check_export(c, err) : LK_OK;
}

/* Of the text; queries whether they are wanted or not: so what is kept serves every kind of basis. */
static struct lk_statistics_opts wanted(const struct lk_compress *c) {
    struct lk_statistics_opts want = {
        .queries = c->group[LK_BASIS_K] > 0, .n_ctx = c->opts.n_ctx, .skip = c->opts.skip};
    memcpy(want.group, c->group, sizeof want.group);
    return want;
}

static bool wants_text(const struct lk_compress *c) {
    return c->n_tok > 0 || c->opts.svd != LK_SVD_PLAIN;
}

static bool by_fisher(const struct lk_compress *c) {
    return c->opts.search == LK_RANK_FISHER || c->opts.search == LK_RANK_FISHER_UNIFORM;
}

static lk_status choose_fisher(struct lk_compress *c, lk_err *err) {
    int32_t ctx = c->opts.n_ctx < 512 ? c->opts.n_ctx : 512;
    if (c->opts.fisher_ctx == 0) c->opts.fisher_ctx = ctx;
    c->fisher_tokens = c->opts.fisher_tokens == 0 ? 8192 : (size_t)c->opts.fisher_tokens;
    if (c->fisher_tokens > c->n_tok) c->fisher_tokens = c->n_tok;
    return lk_fisher_new(&c->fisher, c->model, &c->ledger, err);
}

lk_status lk_compress_check(struct lk_model *model, const struct lk_compress_opts *opts,
                            size_t n_tok, lk_err *err) {
    struct lk_compress c = {.model = model, .hp = &model->net->hp, .opts = *opts, .n_tok = n_tok};
    lk_status status = choose(&c, err);
    struct lk_statistics_opts want = wanted(&c);
    if (status == LK_OK && wants_text(&c)) status = lk_statistics_check(c.hp, &want, n_tok, err);
    if (status == LK_OK && by_fisher(&c)) status = lk_fisher_check(model->net, err);
    return status;
}

lk_status lk_compress_new(struct lk_compress **out, struct lk_model *model,
                          const struct lk_compress_opts *opts, const int32_t *tok, size_t n_tok,
                          lk_err *err) {
    struct lk_ledger first = {0}; /* until the ledger inside is there */
    struct lk_compress *c = lk_alloc(&first, LK_FOR_OTHER, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "no memory to compress");
    c->model = model;
    c->hp = &model->net->hp;
    c->opts = *opts;
    c->n_tok = n_tok;
    c->text_hash = lk_hash(LK_HASH_BEGIN, tok, n_tok * sizeof *tok);
    lk_status status = choose(c, err);
    struct lk_statistics_opts want = wanted(c);
    if (status == LK_OK && wants_text(c))
        status = lk_statistics_new(&c->statistics, model, &want, tok, n_tok, &c->ledger, err);
    if (status == LK_OK && by_fisher(c)) status = choose_fisher(c, err);
    if (status != LK_OK)
        lk_compress_free(c);
    else
        *out = c;
    return status;
}

void lk_compress_free(struct lk_compress *c) {
    if (!c) return;
    for (int side = 0; side < LK_N_BASIS; side++) {
        for (int layer = 0; c->made[side] && layer < c->hp->n_layer; layer++)
            lk_release(&c->ledger, LK_FOR_OTHER, c->made[side][layer].memory,
                       c->made[side][layer].bytes);
        lk_release(&c->ledger, LK_FOR_OTHER, c->made[side], c->hp->n_layer * sizeof *c->made[side]);
    }
    lk_statistics_free(c->statistics);
    if (c->fisher.square) lk_fisher_free(&c->fisher);
    struct lk_ledger last = {0};
    lk_ledger_enter(&last, LK_FOR_OTHER, sizeof *c);
    lk_release(&last, LK_FOR_OTHER, c, sizeof *c);
}

/* ---- reading ---- */

/* Progress goes on after the text: a token's gradients, and fitting a layer's side, count as so many tokens. */
enum { FISHER_TOKENS = 5, FIT_TOKENS = 200 };

static uint64_t all_units(const struct lk_compress *c) {
    uint64_t sides = 0;
    for (int side = 0; side < LK_N_BASIS; side++) sides += c->group[side] > 0;
    return c->n_tok + c->fisher_tokens * FISHER_TOKENS +
           sides * (uint64_t)c->hp->n_layer * FIT_TOKENS;
}

static bool read_progress(void *user, uint64_t done, uint64_t total) {
    const struct lk_compress *c = user;
    (void)total;
    return c->opts.progress(c->opts.user, done, all_units(c));
}

static bool fisher_progress(void *user, uint64_t done, uint64_t total) {
    const struct lk_compress *c = user;
    (void)total;
    return c->opts.progress(c->opts.user, c->n_tok + done * FISHER_TOKENS, all_units(c));
}

lk_status lk_compress_read(struct lk_compress *c, const int32_t *tok, size_t n_tok,
                           const char *path, lk_err *err) {
    lk_status status = LK_OK;
    if (c->statistics && path) status = lk_statistics_resume(c->statistics, path, err);
    if (status == LK_OK && c->statistics)
        status = lk_statistics_read(c->statistics, c->model, tok, n_tok, path,
                                    c->opts.progress ? read_progress : NULL, c, err);
    if (status == LK_OK && by_fisher(c))
        status = lk_fisher_read(&c->fisher, c->model, tok, c->fisher_tokens, c->opts.fisher_ctx,
                                c->opts.as_code ? 2 : 1, c->opts.progress ? fisher_progress : NULL,
                                c, NULL, err);
    return status;
}

/* ---- fitting ---- */

static lk_status made_new(struct lk_compress *c, struct made *m, int n_group, int width,
                          lk_err *err) {
    size_t square = (size_t)n_group * width * width, line = (size_t)n_group * width;
    bool apart = c->balance || c->opts.svd == LK_SVD_OUTPUT;
    m->bytes = n_group * sizeof(double) +
               ((apart ? 2 : 1) * square + (c->opts.mean ? 2 : 1) * line) * sizeof(float) +
               n_group * sizeof(int32_t);
    m->memory = lk_alloc(&c->ledger, LK_FOR_OTHER, m->bytes);
    if (!m->memory)
        return lk_fail(err, LK_E_NOMEM, "no memory for bases of %d x %d channels", n_group, width);
    m->power = m->memory;
    m->down = (float *)(m->power + n_group);
    m->up = apart ? m->down + square : m->down;
    m->error = m->up + square;
    m->mean = c->opts.mean ? m->error + line : NULL;
    m->rank = (int32_t *)(m->error + (c->opts.mean ? 2 : 1) * line);
    m->basis = (struct lk_basis){.n_group = n_group,
                                 .width = width,
                                 .n_comp = width,
                                 .down = m->down,
                                 .up = m->up,
                                 .mean = m->mean,
                                 .rank = m->rank,
                                 .error = m->error};
    return LK_OK;
}

/* What a side's layer is fitted with. */
struct fitting {
    struct lk_fit fit;
    double *second; /* [width][width] of the group at hand, around the mean where that is wanted */
    double *metric; /* [width][width] */
    size_t bytes;   /* of each */
    struct lk_moments weight, output; /* of this layer's weights; empty where not needed */
};

/* The second moment of group g, whole, around its mean where there is one. Returns sum |x|^2. */
static double second_of(const struct lk_moments *m, int g, const float *mean, double *out) {
    int n = m->width;
    double power = 0;
    memcpy(out, m->second + (size_t)g * n * n, (size_t)n * n * sizeof *out);
    lk_mirror(out, n);
    for (int i = 0; i < n; i++) power += out[(size_t)i * n + i];
    for (int i = 0; mean && i < n; i++)
        for (int j = 0; j < n; j++)
            out[(size_t)i * n + j] -=
                m->sum[(size_t)g * n + i] * m->sum[(size_t)g * n + j] / (double)m->n;
    return power;
}

/* Heads of a group side by side, each with its own moments: errors of different heads do not meet. */
static const double *metric_of(const struct lk_moments *m, int first, int heads, double *out) {
    int d = m->width, n = heads * d;
    memset(out, 0, (size_t)n * n * sizeof *out);
    for (int head = 0; head < heads; head++) {
        const double *from = m->second + (size_t)(first + head) * d * d;
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                out[(size_t)(head * d + i) * n + head * d + j] =
                    j <= i ? from[i * d + j] : from[j * d + i];
    }
    return out;
}

/* The components of group g. second: what they are made from, and the rows' errors too, but for plain SVD. */
static lk_status fit_group(struct lk_compress *c, struct fitting *f, int layer,
                           enum lk_basis_side side, int g, const struct lk_moments *rows,
                           struct made *m, lk_err *err) {
    int heads = c->group[side], n = heads * c->hp->d_head;
    const struct lk_moments *of = c->opts.svd == LK_SVD_OUTPUT && side == LK_BASIS_K
                                      ? &c->statistics->query[layer]
                                  : c->opts.svd == LK_SVD_OUTPUT && side == LK_BASIS_V ? &f->output
                                                                                       : NULL;
    float *mean = m->mean ? m->mean + (size_t)g * n : NULL;
    for (int i = 0; mean && i < n; i++)
        mean[i] = (float)(rows->sum[(size_t)g * n + i] / (double)rows->n);
    lk_status status = LK_OK;
    if (c->opts.svd == LK_SVD_PLAIN) {
        second_of(&f->weight, g, NULL, f->second);
        status = lk_fit_eigen(&f->fit, f->second, NULL, err);
    }
    m->power[g] = second_of(rows, g, mean, f->second);
    if (c->opts.svd == LK_SVD_MEAN_POOL)
        lk_fit_mean_pool(&f->fit, c->hp->d_head);
    else if (c->opts.svd != LK_SVD_PLAIN)
        status = lk_fit_eigen(&f->fit, f->second,
                              of ? metric_of(of, g * heads, heads, f->metric) : NULL, err);
    if (status != LK_OK) return status;
    if (!(m->power[g] > 0))
        return lk_fail(err, LK_E_ARG,
                       "layer %d's %s rows are all zero: nothing can be fitted to them", layer,
                       lk_basis_side_name(side));
    lk_fit_measure(&f->fit, f->second);
    if (c->balance) lk_fit_balance(&f->fit, f->second);
    double lost = 0;
    for (int i = 0; i < n; i++) lost += f->second[(size_t)i * n + i];
    for (int j = 0; j < n; j++) {
        lost -= f->fit.gain[j];
        m->error[(size_t)g * n + j] = (float)(lost > 0 ? lost / m->power[g] : 0);
    }
    for (size_t i = 0; i < (size_t)n * n; i++)
        m->down[(size_t)g * n * n + i] = (float)f->fit.down[i];
    for (size_t i = 0; m->up != m->down && i < (size_t)n * n; i++)
        m->up[(size_t)g * n * n + i] = (float)f->fit.up[i];
    return LK_OK;
}

static lk_status fit_layer(struct lk_compress *c, struct fitting *f, int layer,
                           enum lk_basis_side side, lk_err *err) {
    int n_group = c->hp->n_head_kv / c->group[side], width = c->group[side] * c->hp->d_head;
    struct made *m = &c->made[side][layer];
    lk_status status = made_new(c, m, n_group, width, err);
    if (status == LK_OK && c->opts.svd == LK_SVD_PLAIN) {
        status = lk_moments_new(&f->weight, n_group, width, &c->ledger, err);
        if (status == LK_OK)
            status = lk_weight_moments(&f->weight, c->model->net, layer, side, &c->ledger, err);
    }
    if (status == LK_OK && c->opts.svd == LK_SVD_OUTPUT && side == LK_BASIS_V) {
        status = lk_moments_new(&f->output, c->hp->n_head_kv, c->hp->d_head, &c->ledger, err);
        if (status == LK_OK)
            status = lk_output_moments(&f->output, c->model->net, layer, &c->ledger, err);
    }
    const struct lk_moments *rows = c->statistics ? &c->statistics->side[side][layer] : &f->weight;
    for (int g = 0; status == LK_OK && g < n_group; g++)
        status = fit_group(c, f, layer, side, g, rows, m, err);
    if (f->weight.sum) lk_moments_free(&f->weight, &c->ledger);
    if (f->output.sum) lk_moments_free(&f->output, &c->ledger);
    return status;
}

static lk_status fit_side(struct lk_compress *c, enum lk_basis_side side, uint64_t *done,
                          lk_err *err) {
    int width = c->group[side] * c->hp->d_head;
    struct fitting f = {.bytes = (size_t)width * width * sizeof(double)};
    c->made[side] = lk_alloc(&c->ledger, LK_FOR_OTHER, c->hp->n_layer * sizeof *c->made[side]);
    f.second = lk_alloc(&c->ledger, LK_FOR_SCRATCH, f.bytes);
    f.metric = lk_alloc(&c->ledger, LK_FOR_SCRATCH, f.bytes);
    lk_status status = c->made[side] && f.second && f.metric
                           ? LK_OK
                           : lk_fail(err, LK_E_NOMEM, "no memory to fit %d channels", width);
    if (status == LK_OK) status = lk_fit_new(&f.fit, width, &c->ledger, err);
    for (int layer = 0; status == LK_OK && layer < c->hp->n_layer; layer++) {
        status = fit_layer(c, &f, layer, side, err);
        if (status == LK_OK && c->opts.progress &&
            !c->opts.progress(c->opts.user, *done += FIT_TOKENS, all_units(c)))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled while fitting");
    }
    if (f.fit.down) lk_fit_free(&f.fit);
    lk_release(&c->ledger, LK_FOR_SCRATCH, f.second, f.bytes);
    lk_release(&c->ledger, LK_FOR_SCRATCH, f.metric, f.bytes);
    return status;
}

/* ---- ranks ---- */

/* The groups of several sides in one list, side by side, layer by layer. Returns how many. */
static size_t list_groups(const struct lk_compress *c, const enum lk_basis_side *side, int n_side,
                          struct lk_rank_item *item) {
    size_t n = 0;
    enum lk_fisher_as as = c->opts.as_code ? LK_FISHER_CODE : LK_FISHER_PAPER;
    for (int s = 0; s < n_side; s++)
        for (int layer = 0; layer < c->hp->n_layer; layer++)
            for (int g = 0, heads = c->group[side[s]], n_group = c->hp->n_head_kv / heads;
                 g < n_group; g++, n++) {
                int width = heads * c->hp->d_head;
                item[n] = (struct lk_rank_item){
                    .width = width, .error = c->made[side[s]][layer].error + (size_t)g * width};
                enum lk_side of = side[s] == LK_BASIS_V ? LK_V : LK_K;
                if (c->opts.search == LK_RANK_FISHER)
                    item[n].score = lk_fisher_score(&c->fisher, layer, of, g * heads, heads, as);
                if (c->opts.search == LK_RANK_FISHER_UNIFORM)
                    item[n].score =
                        lk_fisher_score(&c->fisher, layer, of, 0, c->hp->n_head_kv, as) /
                        (as == LK_FISHER_PAPER ? n_group : 1);
            }
    return n;
}

/* Ranks of the sides that compete with each other. */
static lk_status share_out(struct lk_compress *c, const enum lk_basis_side *side, int n_side,
                           lk_err *err) {
    size_t bytes = (size_t)n_side * c->hp->n_head_kv * c->hp->n_layer * sizeof(struct lk_rank_item),
           at = 0;
    struct lk_rank_item *item = lk_alloc(&c->ledger, LK_FOR_SCRATCH, bytes);
    if (!item) return lk_fail(err, LK_E_NOMEM, "no memory for ranks");
    size_t n = list_groups(c, side, n_side, item);
    if (c->opts.search == LK_RANK_UNIFORM)
        lk_rank_uniform(item, n, c->opts.rank, c->opts.quantum);
    else if (c->opts.search == LK_RANK_ENERGY)
        lk_rank_by_error(item, n, c->opts.rank, c->opts.quantum);
    else if (c->opts.as_code)
        lk_rank_by_score_as_code(item, n, c->opts.rank, c->opts.quantum);
    else
        lk_rank_by_score(item, n, c->opts.rank, c->opts.quantum);
    for (int s = 0; s < n_side; s++)
        for (int layer = 0; layer < c->hp->n_layer; layer++)
            for (int g = 0; g < c->hp->n_head_kv / c->group[side[s]]; g++)
                c->made[side[s]][layer].rank[g] = item[at++].rank;
    lk_release(&c->ledger, LK_FOR_SCRATCH, item, bytes);
    return LK_OK;
}

/* By Fisher information keys and values compete; keys behind RoPE get what those before it got. */
static lk_status share_all(struct lk_compress *c, lk_err *err) {
    bool follow = by_fisher(c) && c->group[LK_BASIS_K] > 0 && c->group[LK_BASIS_KPRE] > 0;
    enum lk_basis_side pool[LK_N_BASIS];
    int n = 0;
    lk_status status = LK_OK;
    for (int i = 0; status == LK_OK && i < LK_N_BASIS; i++) {
        enum lk_basis_side side = i;
        if (c->group[side] == 0 || (follow && side == LK_BASIS_K)) continue;
        if (by_fisher(c))
            pool[n++] = side;
        else
            status = share_out(c, &side, 1, err);
    }
    if (n > 0) status = share_out(c, pool, n, err);
    for (int layer = 0; status == LK_OK && follow && layer < c->hp->n_layer; layer++)
        memcpy(c->made[LK_BASIS_K][layer].rank, c->made[LK_BASIS_KPRE][layer].rank,
               c->hp->n_head_kv / c->group[LK_BASIS_K] * sizeof(int32_t));
    return status;
}

/* Keep the first n_comp lines of each group's n, in place. */
static void keep_first(float *x, int n_group, int n, int n_comp, int line) {
    for (int g = 1; g < n_group; g++)
        memmove(x + (size_t)g * n_comp * line, x + (size_t)g * n * line,
                (size_t)n_comp * line * sizeof *x);
}

static void truncate_layer(struct made *m) {
    struct lk_basis *b = &m->basis;
    int n_comp = 1;
    for (int g = 0; g < b->n_group; g++) n_comp = m->rank[g] > n_comp ? m->rank[g] : n_comp;
    keep_first(m->down, b->n_group, b->width, n_comp, b->width);
    if (m->up != m->down) keep_first(m->up, b->n_group, b->width, n_comp, b->width);
    keep_first(m->error, b->n_group, b->width, n_comp, 1);
    b->n_comp = n_comp;
}

lk_status lk_compress_fit(struct lk_compress *c, lk_err *err) {
    uint64_t done = c->n_tok + c->fisher_tokens * FISHER_TOKENS;
    lk_status status = LK_OK;
    if (c->statistics && c->statistics->n_tok != c->n_tok)
        return lk_fail(err, LK_E_ARG, "the text has not been read to its end");
    if (by_fisher(c) && c->fisher.n == 0)
        return lk_fail(err, LK_E_ARG, "no gradients have been taken");
    for (int side = 0; status == LK_OK && side < LK_N_BASIS; side++)
        if (c->group[side] > 0) status = fit_side(c, side, &done, err);
    if (status == LK_OK) status = share_all(c, err);
    for (int side = 0; status == LK_OK && c->opts.truncate && side < LK_N_BASIS; side++)
        for (int layer = 0; c->made[side] && layer < c->hp->n_layer; layer++)
            truncate_layer(&c->made[side][layer]);
    return status;
}

const struct lk_basis *lk_compress_basis(const struct lk_compress *c, int layer,
                                         enum lk_basis_side side) {
    static const struct lk_basis none;
    return c->made[side] ? &c->made[side][layer].basis : &none;
}

const lk_model *lk_compress_model(const struct lk_compress *c) { return c->model; }

double lk_compress_error(const struct lk_compress *c, int layer, enum lk_basis_side side) {
    const struct made *m = &c->made[side][layer];
    double lost = 0, power = 0;
    for (int g = 0; g < m->basis.n_group; g++) {
        lost += m->power[g] * m->error[(size_t)g * m->basis.n_comp + m->rank[g] - 1];
        power += m->power[g];
    }
    return lost / power;
}

/* ---- the sidecar ---- */

lk_status lk_compress_write(const struct lk_compress *c, FILE *file, lk_err *err) {
    const struct lk_hparams *hp = c->hp;
    struct lk_sidecar_info info = {
        .model = {c->model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head},
        .calibration_hash = c->text_hash,
        .calibration_tokens = c->n_tok};
    snprintf(info.method, sizeof info.method, "%s", lk_method_name[c->opts.method]);
    snprintf(
        info.options, sizeof info.options,
        "svd %s, group %d, rank %.4g%% %s%s, quantum %d, windows of %d without their first %d%s%s",
        lk_svd_name[c->opts.svd], c->group[LK_BASIS_V], 100 * c->opts.rank,
        lk_rank_search_name[c->opts.search], c->opts.as_code ? " as in Palu's code" : "",
        c->opts.quantum, c->opts.n_ctx, c->opts.skip, c->opts.mean ? ", around the mean" : "",
        c->opts.truncate ? ", truncated" : "");
    struct lk_draft *draft = NULL;
    struct lk_ledger ledger = {0};
    lk_status status = lk_draft_new(&draft, &info, &ledger, err);
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (int side = 0; status == LK_OK && side < LK_N_BASIS; side++)
            if (c->made[side])
                status = lk_draft_add_basis(draft, layer, side, &c->made[side][layer].basis, err);
    if (status == LK_OK) status = lk_draft_write(draft, file, err);
    lk_draft_free(draft);
    return status;
}
