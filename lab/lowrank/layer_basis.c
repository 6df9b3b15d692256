/* Fits the bases of one side, layer by layer and group by group. */
#include "lowrank/layer_basis.h"

#include "cache/project.h"
#include "lowrank/linalg.h"
#include "lowrank/moments.h"

#include <math.h>
#include <string.h>

/* ---- one group: eigenvectors of second moments ---- */

static size_t n_square(const struct lk_fit *fit) { return (size_t)fit->width * fit->width; }

static size_t fit_bytes(const struct lk_fit *fit) {
    return (3 * n_square(fit) + fit->width) * sizeof(double);
}

lk_status lk_fit_new(struct lk_fit *fit, int width, struct lk_ledger *ledger, lk_err *err) {
    *fit = (struct lk_fit){.width = width, .ledger = ledger};
    fit->down = lk_alloc(ledger, LK_FOR_SCRATCH, fit_bytes(fit));
    if (!fit->down) return lk_fail(err, LK_E_NOMEM, "no memory for a basis of %d channels", width);
    fit->up = fit->down + n_square(fit);
    fit->work = fit->up + n_square(fit);
    fit->gain = fit->work + n_square(fit);
    return LK_OK;
}

void lk_fit_free(struct lk_fit *fit) {
    lk_release(fit->ledger, LK_FOR_SCRATCH, fit->down, fit_bytes(fit));
    *fit = (struct lk_fit){0};
}

/* Cholesky factor l of the metric, scaled so that the mean of its diagonal is 1, plus a small
 * multiple of the identity. */
static lk_status factor_metric(double *l, const double *metric, int n, lk_err *err) {
    const double ridge = 1e-6;
    double trace = 0;
    for (int i = 0; i < n; i++) trace += metric[(size_t)i * n + i];
    if (!(trace > 0) || !isfinite(trace))
        return lk_fail(err, LK_E_ARG, "a metric of %d rows is zero or not finite", n);
    for (size_t i = 0; i < (size_t)n * n; i++) l[i] = metric[i] * n / trace;
    for (int i = 0; i < n; i++) l[(size_t)i * n + i] += ridge;
    return lk_cholesky(l, n, err);
}

lk_status lk_fit_eigen(struct lk_fit *fit, const double *second, const double *metric,
                       lk_err *err) {
    int n = fit->width;
    double *l = fit->work;
    memcpy(fit->down, second, n_square(fit) * sizeof(double));
    if (metric) {
        lk_status status = factor_metric(l, metric, n, err);
        if (status) return status;
        lk_tri_mul_right(fit->down, l, n);
        lk_tri_mul_left_t(fit->down, l, n);
    }
    lk_status status = lk_eigen(fit->down, n, fit->gain, fit->ledger, err);
    if (status) return status;
    memcpy(fit->up, fit->down, n_square(fit) * sizeof(double));
    if (metric) {
        lk_tri_mul_right_t(fit->down, l, n);
        lk_tri_solve_right(fit->up, l, n);
    }
    lk_fit_measure(fit, second);
    return LK_OK;
}

void lk_fit_mean_pool(struct lk_fit *fit, int d_head) {
    int n = fit->width, n_head = n / d_head;
    memset(fit->down, 0, n_square(fit) * sizeof(double));
    for (int c = 0; c < d_head; c++)
        for (int head = 0; head < n_head; head++)
            fit->down[(size_t)c * n + head * d_head + c] = 1 / sqrt(n_head);
    memcpy(fit->up, fit->down, n_square(fit) * sizeof(double));
}

/* y - up^T down y is orthogonal, in the metric, to the kept part, and components are orthogonal to
 * each other. So sum |y - x'|^2 = tr M - sum over j of down_j M up_j^T for every kind of basis
 * here. */
void lk_fit_measure(struct lk_fit *fit, const double *second) {
    int n = fit->width;
    lk_matmul(fit->work, fit->down, second, n, n, n);
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int c = 0; c < n; c++)
            sum += fit->work[(size_t)j * n + c] * fit->up[(size_t)j * n + c];
        fit->gain[j] = sum;
    }
}

/* The power of line j of `lines` [n][n] under `second` as a share of the mean over all directions.
 * The minimum keeps the scale of a direction that is hardly used within the range of f32. product:
 * lines times second. */
static double power_share(const double *lines, const double *product, int n, int j, double trace) {
    const double min_share = 1e-8;
    double power = 0;
    for (int c = 0; c < n; c++) power += product[(size_t)j * n + c] * lines[(size_t)j * n + c];
    double share = trace > 0 ? power / trace * n : 1;
    return share > min_share ? share : min_share;
}

static double trace_of(const double *a, int n) {
    double trace = 0;
    for (int i = 0; i < n; i++) trace += a[(size_t)i * n + i];
    return trace;
}

/* z_j /= scale. */
static void scale_component(struct lk_fit *fit, int j, double scale) {
    int n = fit->width;
    for (int c = 0; c < n; c++) {
        fit->down[(size_t)j * n + c] /= scale;
        fit->up[(size_t)j * n + c] *= scale;
    }
}

void lk_fit_balance(struct lk_fit *fit, const double *second) {
    int n = fit->width;
    double trace = trace_of(second, n);
    lk_matmul(fit->work, fit->down, second, n, n, n);
    for (int j = 0; j < n; j++)
        scale_component(fit, j, pow(power_share(fit->down, fit->work, n, j, trace), 0.25));
}

void lk_fit_equalize(struct lk_fit *fit, const double *second, const double *queries) {
    int n = fit->width;
    lk_fit_balance(fit, second);
    /* Now the rows' deviation is the square root of the scale, and that of the queries has the
     * scale in it, so their own share remains. */
    double trace = trace_of(second, n), trace_q = trace_of(queries, n);
    for (int pass = 0; pass < 2; pass++) {
        const double *lines = pass ? fit->up : fit->down;
        lk_matmul(fit->work, lines, pass ? queries : second, n, n, n);
        for (int j = 0; j < n; j++) {
            double share = power_share(lines, fit->work, n, j, pass ? trace_q : trace);
            fit->gain[j] = pass ? fit->gain[j] / share : share;
        }
    }
    for (int j = 0; j < n; j++) scale_component(fit, j, pow(fit->gain[j], 0.25));
    lk_fit_measure(fit, second);
}

/* ---- memory ---- */

static lk_status layer_basis_alloc(struct lk_layer_basis *b, const struct lk_basis_source *source,
                                   int n_group, int width, lk_err *err) {
    const lk_compress_opts *opts = &source->plan->opts;
    size_t square = (size_t)n_group * width * width, line = (size_t)n_group * width;
    bool separate_up = source->plan->balance || opts->svd == LK_SVD_OUTPUT;
    size_t n_float = (separate_up ? 2 : 1) * square + (opts->mean ? 2 : 1) * line;
    b->bytes = n_group * sizeof(double) + n_float * sizeof(float) + n_group * sizeof(int32_t);
    b->memory = lk_alloc(source->ledger, LK_FOR_OTHER, b->bytes);
    if (!b->memory)
        return lk_fail(err, LK_E_NOMEM, "no memory for bases of %d x %d channels", n_group, width);
    b->power = b->memory;
    b->down = (float *)(b->power + n_group);
    b->up = separate_up ? b->down + square : b->down;
    b->error = b->up + square;
    b->mean = opts->mean ? b->error + line : NULL;
    b->rank = (int32_t *)(b->down + n_float);
    b->basis = (struct lk_basis){.n_group = n_group,
                                 .width = width,
                                 .n_comp = width,
                                 .down = {.f32 = b->down},
                                 .up = {.f32 = b->up},
                                 .mean = b->mean,
                                 .rank = b->rank,
                                 .error = b->error};
    return LK_OK;
}

void lk_layer_basis_free(struct lk_layer_basis *b, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_OTHER, b->memory, b->bytes);
    *b = (struct lk_layer_basis){0};
}

/* ---- fitting ---- */

/* Fits one layer after the other. */
struct fitter {
    const struct lk_basis_source *source;
    enum lk_basis_side side;
    int layer;
    int n_group, group, width; /* KV heads per group, and their channels */
    struct lk_fit fit;
    double *second;                /* [width][width] of the current group, central if requested */
    double *metric;                /* [width][width] */
    size_t bytes;                  /* of each */
    struct lk_moments weight;      /* of this layer's projection; empty if not needed */
    struct lk_moments output;      /* of this layer's W_O; empty if not needed */
    const struct lk_moments *rows; /* of this layer */
};

/* The second moment of group g, stored whole, central if `mean` is not NULL. Returns sum |x|^2. */
static double second_moment(const struct lk_moments *m, int g, const float *mean, double *out) {
    int n = m->width;
    double power = 0;
    /* Not NULL: see fit_layer. NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    memcpy(out, m->second + (size_t)g * n * n, (size_t)n * n * sizeof *out);
    lk_symmetrize(out, n);
    for (int i = 0; i < n; i++) power += out[(size_t)i * n + i];
    for (int i = 0; mean && i < n; i++)
        for (int j = 0; j < n; j++)
            out[(size_t)i * n + j] -=
                m->sum[(size_t)g * n + i] * m->sum[(size_t)g * n + j] / (double)m->n;
    return power;
}

/* Block-diagonal metric of `heads` adjacent heads from `first` on: errors of different heads are
 * independent. */
static const double *head_metric(const struct lk_moments *m, int first, int heads, double *out) {
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

/* Moments by KV head of the metric that LK_SVD_OUTPUT measures errors with; NULL: the identity.
 *
 * A key k before RoPE at distance t is read by the query q before RoPE as q^T R(t)^T k, so its
 * metric is the mean over distances of R(t) (q q^T) R(t)^T. Queries after RoPE, R(p) q, have this
 * second moment: their positions p cover a window as the distances do. So both sides of K have the
 * same metric. */
static const struct lk_moments *metric_moments(const struct fitter *f) {
    if (f->source->plan->opts.svd != LK_SVD_OUTPUT) return NULL;
    return f->side == LK_BASIS_V ? &f->output : &f->source->statistics->query[f->layer];
}

/* Compute the components of group g in f->fit and their gain in the rows' power; f->second becomes
 * the rows' second moment. With plain SVD the components come from the weights, those of K from the
 * queries with oscar, otherwise from the rows. */
static lk_status fit_components(struct fitter *f, int g, struct lk_layer_basis *b, lk_err *err) {
    const lk_compress_opts *opts = &f->source->plan->opts;
    const struct lk_moments *rows = f->rows, *metric = metric_moments(f);
    int n = f->width;
    float *mean = b->mean ? b->mean + (size_t)g * n : NULL;
    for (int i = 0; mean && i < n; i++)
        mean[i] = (float)(rows->sum[(size_t)g * n + i] / (double)rows->n);
    lk_status status = LK_OK;
    if (opts->svd == LK_SVD_PLAIN) {
        second_moment(&f->weight, g, NULL, f->second);
        status = lk_fit_eigen(&f->fit, f->second, NULL, err);
    }
    b->power[g] = second_moment(rows, g, mean, f->second);
    if (opts->svd == LK_SVD_MEAN_POOL)
        lk_fit_mean_pool(&f->fit, n / f->group);
    else if (opts->method == LK_METHOD_OSCAR && f->side == LK_BASIS_K)
        status = lk_fit_eigen(
            &f->fit,
            head_metric(&f->source->statistics->query[f->layer], g * f->group, f->group, f->metric),
            NULL, err);
    else if (opts->svd != LK_SVD_PLAIN)
        status = lk_fit_eigen(
            &f->fit, f->second,
            metric ? head_metric(metric, g * f->group, f->group, f->metric) : NULL, err);
    if (status) return status;
    if (!(b->power[g] > 0))
        return lk_fail(err, LK_E_ARG, "the %s rows of layer %d are all zero: nothing to fit",
                       lk_basis_side_name(f->side), f->layer);
    lk_fit_measure(&f->fit, f->second);
    if (opts->equalize && f->side != LK_BASIS_V)
        lk_fit_equalize(&f->fit, f->second,
                        head_metric(&f->source->statistics->query[f->layer], g * f->group, f->group,
                                    f->metric));
    else if (f->source->plan->balance)
        lk_fit_balance(&f->fit, f->second);
    return LK_OK;
}

static lk_status fit_group(struct fitter *f, int g, struct lk_layer_basis *b, lk_err *err) {
    lk_status status = fit_components(f, g, b, err);
    if (status) return status;
    int n = f->width;
    double lost = 0;
    for (int i = 0; i < n; i++) lost += f->second[(size_t)i * n + i];
    for (int j = 0; j < n; j++) {
        lost -= f->fit.gain[j];
        b->error[(size_t)g * n + j] = (float)(lost > 0 ? lost / b->power[g] : 0);
        double singular = sqrt(fmax(f->fit.gain[j], 0));
        b->singular += singular;
        if (j < n / 4) b->singular_quarter += singular;
        if (j < n / 2) b->singular_half += singular;
    }
    for (size_t i = 0; i < (size_t)n * n; i++)
        b->down[(size_t)g * n * n + i] = (float)f->fit.down[i];
    for (size_t i = 0; b->up != b->down && i < (size_t)n * n; i++)
        b->up[(size_t)g * n * n + i] = (float)f->fit.up[i];
    return LK_OK;
}

static lk_status fit_layer(struct fitter *f, struct lk_layer_basis *b, lk_err *err) {
    const struct lk_basis_source *source = f->source;
    const struct lk_net *net = source->net;
    lk_compress_svd svd = source->plan->opts.svd;
    lk_status status = layer_basis_alloc(b, source, f->n_group, f->width, err);
    if (!status && svd == LK_SVD_PLAIN) {
        status = lk_moments_new(&f->weight, f->n_group, f->width, source->ledger, err);
        if (!status)
            status = lk_weight_moments(&f->weight, net, f->layer, f->side, source->ledger, err);
    }
    if (!status && svd == LK_SVD_OUTPUT && f->side == LK_BASIS_V) {
        status = lk_moments_new(&f->output, net->hp.n_head_kv, net->hp.d_head, source->ledger, err);
        if (!status) status = lk_output_moments(&f->output, net, f->layer, source->ledger, err);
    }
    /* Without a text svd is LK_SVD_PLAIN. */
    f->rows = source->statistics ? &source->statistics->side[f->side][f->layer] : &f->weight;
    for (int g = 0; !status && g < f->n_group; g++) status = fit_group(f, g, b, err);
    if (f->weight.sum) lk_moments_free(&f->weight, source->ledger);
    if (f->output.sum) lk_moments_free(&f->output, source->ledger);
    return status;
}

lk_status lk_fit_layers(struct lk_layer_basis *out, const struct lk_basis_source *source,
                        enum lk_basis_side side, bool (*layer_done)(void *user), void *user,
                        lk_err *err) {
    const struct lk_hparams *hp = &source->net->hp;
    struct fitter f = {.source = source, .side = side, .group = source->plan->group[side]};
    f.n_group = hp->n_head_kv / f.group;
    f.width = f.group * hp->d_head;
    f.bytes = (size_t)f.width * f.width * sizeof(double);
    f.second = lk_alloc(source->ledger, LK_FOR_SCRATCH, f.bytes);
    f.metric = lk_alloc(source->ledger, LK_FOR_SCRATCH, f.bytes);
    lk_status status = f.second && f.metric
                           ? LK_OK
                           : lk_fail(err, LK_E_NOMEM, "no memory to fit %d channels", f.width);
    if (!status) status = lk_fit_new(&f.fit, f.width, source->ledger, err);
    for (; !status && f.layer < hp->n_layer; f.layer++) {
        status = fit_layer(&f, &out[f.layer], err);
        if (!status && !layer_done(user))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled while fitting");
    }
    if (f.fit.down) lk_fit_free(&f.fit);
    lk_release(source->ledger, LK_FOR_SCRATCH, f.second, f.bytes);
    lk_release(source->ledger, LK_FOR_SCRATCH, f.metric, f.bytes);
    return status;
}

/* ---- ranks ---- */

/* Keep the first n_comp of n lines of each group, in place. */
static void keep_first_lines(float *x, int n_group, int n, int n_comp, int line) {
    for (int g = 1; g < n_group; g++)
        memmove(x + (size_t)g * n_comp * line, x + (size_t)g * n * line,
                (size_t)n_comp * line * sizeof *x);
}

void lk_layer_basis_truncate(struct lk_layer_basis *layer) {
    struct lk_basis *b = &layer->basis;
    int n_comp = 1;
    for (int g = 0; g < b->n_group; g++) n_comp = layer->rank[g] > n_comp ? layer->rank[g] : n_comp;
    keep_first_lines(layer->down, b->n_group, b->width, n_comp, b->width);
    if (layer->up != layer->down)
        keep_first_lines(layer->up, b->n_group, b->width, n_comp, b->width);
    keep_first_lines(layer->error, b->n_group, b->width, n_comp, 1);
    b->n_comp = n_comp;
}

lk_status lk_layer_basis_pack(const struct lk_layer_basis *b, enum lk_basis_type type,
                              struct lk_ledger *ledger, struct lk_basis *out, void **mem,
                              size_t *bytes, lk_err *err) {
    const struct lk_basis *from = &b->basis;
    size_t n_row = (size_t)from->n_group * from->n_comp, n = from->width;
    size_t matrix = (lk_basis_numbers_bytes(type, n_row * n) + 63) / 64 * 64;
    size_t each = matrix + n_row * sizeof(float);
    bool separate_up = b->up != b->down;
    *out = *from;
    *mem = NULL;
    *bytes = 0;
    if (type == LK_BASIS_F32) return LK_OK;
    each = (each + 63) / 64 * 64;
    char *at = lk_alloc(ledger, LK_FOR_OTHER, (separate_up ? 2 : 1) * each);
    if (!at) return lk_fail(err, LK_E_NOMEM, "no memory for a basis of %d channels", from->width);
    *mem = at;
    *bytes = (separate_up ? 2 : 1) * each;
    char *up = separate_up ? at + each : at;
    bool scaled = type == LK_BASIS_Q8;
    lk_basis_pack(type, b->down, n_row, n, at, (float *)(at + matrix));
    if (separate_up) lk_basis_pack(type, b->up, n_row, n, up, (float *)(up + matrix));
    out->type = type;
    out->down =
        (struct lk_basis_matrix){.any = at, .scale = scaled ? (const float *)(at + matrix) : NULL};
    out->up =
        (struct lk_basis_matrix){.any = up, .scale = scaled ? (const float *)(up + matrix) : NULL};
    return LK_OK;
}

double lk_layer_basis_loss(const struct lk_layer_basis *b) {
    double lost = 0, power = 0;
    for (int g = 0; g < b->basis.n_group; g++) {
        lost += b->power[g] * b->error[(size_t)g * b->basis.n_comp + b->rank[g] - 1];
        power += b->power[g];
    }
    return lost / power;
}
