/* Eigenvectors of second moments as bases. */
#include "lowrank/fit.h"

#include "lowrank/linalg.h"

#include <math.h>
#include <string.h>

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
