/* Low-rank bases compared with their definition: singular values by LAPACK's SVD, errors summed row
 * by row. */
#include "base/hash.h"
#include "base/ledger.h"
#include "lowrank/layer_basis.h"
#include "lowrank/linalg.h"
#include "lowrank/moments.h"
#include "lowrank/rank.h"
#include "test.h"

#include <lapacke.h>

static struct lk_ledger ledger;

static double *gauss(struct random *r, size_t n) {
    double *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(r);
    return x;
}

/* Rows [rows][n] with correlated channels of different size and a mean that is not zero. */
static double *uneven_rows(struct random *r, int rows, int n) {
    double *mix = gauss(r, (size_t)n * n), *plain = gauss(r, (size_t)rows * n),
           *x = malloc((size_t)rows * n * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) mix[i * n + j] *= pow(0.8, i);
    lk_matmul(x, plain, mix, rows, n, n);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) x[i * n + j] += j % 5;
    free(mix);
    free(plain);
    return x;
}

static double *second_of(const double *x, int rows, int n) {
    double *m = calloc((size_t)n * n, sizeof *m);
    assert_non_null(m);
    lk_gram_add(m, n, x, rows, n);
    lk_symmetrize(m, n);
    return m;
}

/* sum |x - x'|^2 in the metric g (NULL: the identity) with r components, row by row. */
static double lost_by_rows(const struct lk_fit *fit, const double *x, int rows, int r,
                           const double *g) {
    int n = fit->width;
    double sum = 0, e[128];
    for (int i = 0; i < rows; i++) {
        const double *row = x + (size_t)i * n;
        memcpy(e, row, n * sizeof *e);
        for (int j = 0; j < r; j++) {
            double z = 0;
            for (int c = 0; c < n; c++) z += fit->down[j * n + c] * row[c];
            for (int c = 0; c < n; c++) e[c] -= z * fit->up[j * n + c];
        }
        for (int a = 0; a < n; a++)
            for (int b = 0; g ? b < n : b == 0; b++)
                sum += g ? e[a] * g[a * n + b] * e[b] : e[a] * e[a];
    }
    return sum;
}

static double trace(const double *m, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += m[i * n + i];
    return sum;
}

/* The same according to lk_fit's gain. */
static double lost_by_gain(const struct lk_fit *fit, const double *second, int r) {
    double left = trace(second, fit->width);
    for (int j = 0; j < r; j++) left -= fit->gain[j];
    return left;
}

static void assert_near(double a, double b, double relative, double scale) {
    if (!(fabs(a - b) <= relative * fabs(scale)))
        fail_msg("%.12g against %.12g, of %.12g", a, b, scale);
}

/* ---- linear algebra ---- */

static void test_eigen(void **state) {
    const int sizes[] = {1, 2, 3, 17, 64, 100};
    struct random r = {1};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        double *x = gauss(&r, (size_t)n * n), *a = second_of(x, n, n),
               *v = malloc((size_t)n * n * sizeof *v), value[100];
        memcpy(v, a, (size_t)n * n * sizeof *v);
        assert_int_equal(lk_eigen(v, n, value, &ledger, NULL), LK_OK);
        for (int i = 0; i < n; i++) {
            assert_true(i == 0 || value[i] <= value[i - 1]);
            for (int c = 0; c < n; c++) {
                double av = 0, dot = 0;
                for (int k = 0; k < n; k++) {
                    av += a[c * n + k] * v[i * n + k];
                    dot += v[i * n + k] * v[c * n + k];
                }
                assert_near(av, value[i] * v[i * n + c], 1e-12, value[0]);
                assert_near(dot, c == i, 1e-12, 1);
            }
        }
        free(x);
        free(a);
        free(v);
    }
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_SCRATCH), 0);
}

static void test_cholesky(void **state) {
    enum { N = 23 };
    struct random r = {2};
    double *x = gauss(&r, 3 * N * N), *a = second_of(x, 3 * N, N), *l = malloc(N * N * sizeof *l),
           *b = malloc(N * N * sizeof *b);
    memcpy(l, a, N * N * sizeof *l);
    assert_int_equal(lk_cholesky(l, N, NULL), LK_OK);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += l[i * N + k] * l[j * N + k];
            assert_near(sum, a[i * N + j], 1e-12, a[0]);
            if (j > i) assert_true(l[i * N + j] == 0);
        }
    /* Each product compared with three loops; the solve must undo a product. */
    void (*const product[])(double *, const double *, int) = {lk_tri_mul_left_t, lk_tri_mul_right,
                                                              lk_tri_mul_right_t};
    for (int p = 0; p < 3; p++) {
        memcpy(b, x, N * N * sizeof *b);
        product[p](b, l, N);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                double sum = 0;
                for (int k = 0; k < N; k++)
                    sum += p == 0 ? l[k * N + i] * x[k * N + j]
                                  : x[i * N + k] * (p == 1 ? l[k * N + j] : l[j * N + k]);
                assert_near(b[i * N + j], sum, 1e-12, 100);
            }
    }
    memcpy(b, x, N * N * sizeof *b);
    lk_tri_mul_right(b, l, N);
    lk_tri_solve_right(b, l, N);
    for (int i = 0; i < N * N; i++) assert_near(b[i], x[i], 1e-9, 1);
    a[5 * N + 5] = -1;
    lk_err err = {0};
    assert_int_equal(lk_cholesky(a, N, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "not positive definite"));
    free(x);
    free(a);
    free(l);
    free(b);
}

/* ---- bases ---- */

/* Palu's formula as printed: S S^T = X^T X, W S = U Sigma V^T, W' = U_r Sigma_r V_r^T S^-1. Fills
 * sigma [min(n_out, n_in)] and w_r. x: [rows][n_in], w: [n_out][n_in]. ridge is added to X^T X. */
static void palu(const double *x, int rows, const double *w, int n_out, int n_in, double ridge,
                 int rank, double *sigma, double *w_r) {
    int n = n_out < n_in ? n_out : n_in;
    double *s = second_of(x, rows, n_in), *ws = malloc((size_t)n_out * n_in * sizeof *ws),
           *u = malloc((size_t)n_out * n * sizeof *u),
           *vt = calloc((size_t)n_in * n_in, sizeof *vt);
    for (int i = 0; i < n_in; i++) s[i * n_in + i] += ridge;
    assert_int_equal(lk_cholesky(s, n_in, NULL), LK_OK);
    lk_matmul(ws, w, s, n_out, n_in, n_in);
    assert_int_equal(
        LAPACKE_dgesdd(LAPACK_ROW_MAJOR, 'S', n_out, n_in, ws, n_in, sigma, u, n, vt, n_in), 0);
    lk_tri_solve_right(vt, s, n_in); /* rows below n are zero */
    for (int i = 0; i < n_out; i++)
        for (int j = 0; j < n_in; j++) {
            double sum = 0;
            for (int k = 0; k < rank; k++) sum += u[i * n + k] * sigma[k] * vt[k * n_in + j];
            w_r[i * n_in + j] = sum;
        }
    free(s);
    free(ws);
    free(u);
    free(vt);
}

/* sum |y - y'|^2 for y = W x, y' = W' x. */
static double output_error(const double *x, int rows, const double *w, const double *w_r, int n_out,
                           int n_in) {
    double sum = 0;
    for (int i = 0; i < rows; i++)
        for (int o = 0; o < n_out; o++) {
            double e = 0;
            for (int c = 0; c < n_in; c++)
                e += (w[o * n_in + c] - w_r[o * n_in + c]) * x[i * n_in + c];
            sum += e * e;
        }
    return sum;
}

static double tail(const double *sigma, int from, int n) {
    double sum = 0;
    for (int i = from; i < n; i++) sum += sigma[i] * sigma[i];
    return sum;
}

static void test_whitened(void **state) {
    const struct {
        int rows, n_out, n_in;
    } cases[] = {{300, 24, 40}, {500, 48, 48}, {200, 64, 32}, {64, 8, 17}};
    struct random r = {3};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int rows = cases[k].rows, n_out = cases[k].n_out, n_in = cases[k].n_in,
            n = n_out < n_in ? n_out : n_in;
        double *x = uneven_rows(&r, rows, n_in), *w = gauss(&r, (size_t)n_out * n_in),
               *w_r = malloc((size_t)n_out * n_in * sizeof *w_r),
               *y = malloc((size_t)rows * n_out * sizeof *y),
               *projected = malloc((size_t)n_out * n_in * sizeof *projected), sigma[64];
        lk_matmul_nt(y, x, w, rows, n_out, n_in);
        double *second = second_of(y, rows, n_out), *p = malloc((size_t)n_out * n_out * sizeof *p);
        struct lk_fit fit;
        assert_int_equal(lk_fit_new(&fit, n_out, &ledger, NULL), LK_OK);
        assert_int_equal(lk_fit_eigen(&fit, second, NULL, NULL), LK_OK);
        for (int rank = 1; rank < n; rank += 3) {
            palu(x, rows, w, n_out, n_in, 0, rank, sigma, w_r);
            double expected = tail(sigma, rank, n), whole = trace(second, n_out);
            assert_near(output_error(x, rows, w, w_r, n_out, n_in), expected, 1e-9, whole);
            assert_near(lost_by_gain(&fit, second, rank), expected, 1e-9, whole);
            assert_near(lost_by_rows(&fit, y, rows, rank, NULL), expected, 1e-9, whole);
            if (expected > 1e-6 * whole)
                assert_near(lost_by_gain(&fit, second, rank), expected, 1e-3, expected);
            /* up^T down W is Palu's W'. */
            for (int i = 0; i < n_out * n_out; i++) {
                p[i] = 0;
                for (int j = 0; j < rank; j++)
                    p[i] += fit.up[j * n_out + i / n_out] * fit.down[j * n_out + i % n_out];
            }
            lk_matmul(projected, p, w, n_out, n_in, n_out);
            if (sigma[rank - 1] - sigma[rank] > 1e-3 * sigma[0])
                for (int i = 0; i < n_out * n_in; i++)
                    assert_near(projected[i], w_r[i], 1e-6, sqrt(n_in));
        }
        lk_fit_free(&fit);
        free(x);
        free(w);
        free(w_r);
        free(y);
        free(projected);
        free(second);
        free(p);
    }
}

/* Palu's appendix K.3: random X [50][100] and W [80][100], so X^T X needs lambda. With s components
 * removed, the error is at most sqrt(s (sigma_max(X^T X) + lambda)) |W|_2. */
static void test_bound(void **state) {
    enum { B = 50, M = 100, N = 80 };
    struct random r = {4};
    double *w_r = malloc(N * M * sizeof *w_r), *y = malloc(B * N * sizeof *y), sigma[N], values[M];
    for (int trial = 0; trial < 3; trial++) {
        double *x = gauss(&r, B * M), *w = gauss(&r, N * M), *xx = second_of(x, B, M),
               *ww = calloc(N * N, sizeof *ww);
        lk_matmul_nt(ww, w, w, N, N, M);
        assert_int_equal(lk_eigen(xx, M, values, &ledger, NULL), LK_OK);
        double lambda = 1e-3 - values[M - 1], largest = values[0];
        assert_int_equal(lk_eigen(ww, N, values, &ledger, NULL), LK_OK);
        double norm = sqrt(values[0]);
        lk_matmul_nt(y, x, w, B, N, M);
        double *second = second_of(y, B, N);
        struct lk_fit fit;
        assert_int_equal(lk_fit_new(&fit, N, &ledger, NULL), LK_OK);
        assert_int_equal(lk_fit_eigen(&fit, second, NULL, NULL), LK_OK);
        for (int s = 1; s < N; s += 13) {
            palu(x, B, w, N, M, lambda, N - s, sigma, w_r);
            double error = output_error(x, B, w, w_r, N, M),
                   bound = s * (largest + lambda) * norm * norm;
            assert_true(error <= bound);
            assert_near(error, tail(sigma, N - s, N), 1e-3, trace(second, N));
            /* Directly from the rows, without lambda: the optimum. */
            double best = lost_by_rows(&fit, y, B, N - s, NULL);
            assert_true(best <= error + 1e-9 * trace(second, N));
            assert_near(lost_by_gain(&fit, second, N - s), best, 1e-9, trace(second, N));
            if (N - s >= B) assert_near(best, 0, 1e-9, trace(second, N));
        }
        lk_fit_free(&fit);
        free(x);
        free(w);
        free(xx);
        free(ww);
        free(second);
    }
    free(w_r);
    free(y);
}

/* In its own metric no other basis has a smaller error, and gain still gives the plain error of the
 * rows. */
static void test_metric(void **state) {
    enum { N = 24, ROWS = 400 };
    struct random r = {5};
    double *x = uneven_rows(&r, ROWS, N), *q = uneven_rows(&r, 100, N),
           *second = second_of(x, ROWS, N), *metric = second_of(q, 100, N);
    struct lk_fit own, plain;
    assert_int_equal(lk_fit_new(&own, N, &ledger, NULL), LK_OK);
    assert_int_equal(lk_fit_new(&plain, N, &ledger, NULL), LK_OK);
    assert_int_equal(lk_fit_eigen(&own, second, metric, NULL), LK_OK);
    assert_int_equal(lk_fit_eigen(&plain, second, NULL, NULL), LK_OK);
    double whole = trace(second, N), whole_metric = lost_by_rows(&own, x, ROWS, 0, metric);
    for (int rank = 1; rank <= N; rank++) {
        double in_metric = lost_by_rows(&own, x, ROWS, rank, metric),
               other = lost_by_rows(&plain, x, ROWS, rank, metric);
        assert_true(in_metric <= other + 1e-5 * whole_metric);
        assert_near(lost_by_gain(&own, second, rank), lost_by_rows(&own, x, ROWS, rank, NULL), 1e-6,
                    whole);
        assert_true(lost_by_rows(&plain, x, ROWS, rank, NULL) <=
                    lost_by_rows(&own, x, ROWS, rank, NULL) + 1e-9 * whole);
        if (rank == 8) assert_true(in_metric < 0.8 * other);
    }
    assert_near(lost_by_rows(&own, x, ROWS, N, NULL), 0, 1e-6, whole);
    lk_err err = {0};
    memset(metric, 0, N * N * sizeof *metric);
    assert_int_equal(lk_fit_eigen(&own, second, metric, &err), LK_E_ARG);
    lk_fit_free(&own);
    lk_fit_free(&plain);
    free(x);
    free(q);
    free(second);
    free(metric);
}

/* Balancing changes the latents, not the rows: the power of each latent becomes its square root. */
static void test_balance(void **state) {
    enum { N = 20, ROWS = 200 };
    struct random r = {6};
    double *x = uneven_rows(&r, ROWS, N), *second = second_of(x, ROWS, N), power[N], before[N];
    struct lk_fit fit;
    assert_int_equal(lk_fit_new(&fit, N, &ledger, NULL), LK_OK);
    assert_int_equal(lk_fit_eigen(&fit, second, NULL, NULL), LK_OK);
    for (int rank = 0; rank < N; rank++) before[rank] = lost_by_rows(&fit, x, ROWS, rank, NULL);
    memcpy(power, fit.gain, sizeof power);
    lk_fit_balance(&fit, second);
    lk_fit_measure(&fit, second);
    for (int rank = 0; rank < N; rank++) {
        assert_near(lost_by_rows(&fit, x, ROWS, rank, NULL), before[rank], 1e-9, before[0]);
        assert_near(fit.gain[rank], power[rank], 1e-9, power[0]);
        double z = 0;
        for (int i = 0; i < ROWS; i++) {
            double dot = 0;
            for (int c = 0; c < N; c++) dot += fit.down[rank * N + c] * x[i * N + c];
            z += dot * dot;
        }
        assert_near(z * z, power[rank] * before[0] / N, 1e-6, z * z);
    }
    lk_fit_free(&fit);
    free(x);
    free(second);
}

/* Equalizing gives all latents the same ratio of their power to that of the queries. */
static void test_equalize(void **state) {
    enum { N = 20, ROWS = 200 };
    struct random r = {16};
    double *x = uneven_rows(&r, ROWS, N), *q = uneven_rows(&r, ROWS, N), first = 0;
    double *second = second_of(x, ROWS, N), *queries = second_of(q, ROWS, N), gain[N];
    struct lk_fit fit;
    assert_int_equal(lk_fit_new(&fit, N, &ledger, NULL), LK_OK);
    assert_int_equal(lk_fit_eigen(&fit, second, NULL, NULL), LK_OK);
    memcpy(gain, fit.gain, sizeof gain);
    lk_fit_equalize(&fit, second, queries);
    for (int j = 0; j < N; j++) {
        double z = 0, y = 0;
        for (int i = 0; i < ROWS; i++) {
            double down = 0, up = 0;
            for (int c = 0; c < N; c++) {
                down += fit.down[j * N + c] * x[i * N + c];
                up += fit.up[j * N + c] * q[i * N + c];
            }
            z += down * down;
            y += up * up;
        }
        if (j == 0) first = z / y;
        assert_near(z / y, first, 1e-6, first);
        assert_near(fit.gain[j], gain[j], 1e-9, gain[0]);
    }
    lk_fit_free(&fit);
    free(x), free(q), free(second), free(queries);
}

/* Mean pooling replaces every head of a group by the mean of the heads. */
static void test_mean_pool(void **state) {
    enum { HEADS = 3, D = 6, N = HEADS * D, ROWS = 50 };
    struct random r = {7};
    double *x = uneven_rows(&r, ROWS, N), *second = second_of(x, ROWS, N), expected = 0;
    struct lk_fit fit;
    assert_int_equal(lk_fit_new(&fit, N, &ledger, NULL), LK_OK);
    lk_fit_mean_pool(&fit, D);
    lk_fit_measure(&fit, second);
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < N; c++) {
            double mean = 0;
            for (int head = 0; head < HEADS; head++) mean += x[i * N + head * D + c % D] / HEADS;
            expected += (x[i * N + c] - mean) * (x[i * N + c] - mean);
        }
    assert_near(lost_by_rows(&fit, x, ROWS, D, NULL), expected, 1e-9, expected);
    assert_near(lost_by_gain(&fit, second, D), expected, 1e-9, expected);
    assert_near(lost_by_rows(&fit, x, ROWS, N, NULL), expected, 1e-9, expected);
    lk_fit_free(&fit);
    free(x);
    free(second);
}

/* ---- moments ---- */

static void test_moments(void **state) {
    enum { GROUPS = 3, WIDTH = 7, ROWS = 37, LINE = GROUPS * WIDTH };
    struct random r = {8};
    struct lk_moments m, again;
    double *x = gauss(&r, ROWS * LINE);
    assert_int_equal(lk_moments_new(&m, GROUPS, WIDTH, &ledger, NULL), LK_OK);
    for (int at = 0, n; at < ROWS; at += n) { /* in batches */
        n = ROWS - at < 10 ? ROWS - at : 10;
        for (int g = 0; g < GROUPS; g++) lk_moments_add(&m, g, x + at * LINE + g * WIDTH, n, LINE);
        lk_moments_count(&m, n);
    }
    assert_int_equal(m.n, ROWS);
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < WIDTH; i++) {
            double sum = 0, power = 0;
            for (int k = 0; k < ROWS; k++) {
                sum += x[k * LINE + g * WIDTH + i];
                power += x[k * LINE + g * WIDTH + i] * x[k * LINE + g * WIDTH + i / 2];
            }
            assert_near(m.sum[g * WIDTH + i], sum, 1e-12, ROWS);
            assert_near(m.second[(g * WIDTH + i) * WIDTH + i / 2], power, 1e-12, ROWS);
        }
    FILE *f = tmpfile();
    uint64_t hash = LK_FNV1A_INIT, read = LK_FNV1A_INIT;
    assert_true(lk_moments_write(&m, f, &hash));
    rewind(f);
    assert_int_equal(lk_moments_new(&again, GROUPS, WIDTH, &ledger, NULL), LK_OK);
    assert_true(lk_moments_read(&again, f, &read));
    assert_int_equal(hash, read);
    assert_int_equal(again.n, ROWS);
    assert_memory_equal(again.sum, m.sum, GROUPS * WIDTH * (WIDTH + 1) * sizeof(double));
    assert_false(lk_moments_read(&again, f, &read)); /* end of file */
    fclose(f);
    lk_moments_free(&m, &ledger);
    lk_moments_free(&again, &ledger);
    struct lk_ledger small = {.limit = 64};
    assert_int_equal(lk_moments_new(&m, GROUPS, WIDTH, &small, NULL), LK_E_NOMEM);
    free(x);
}

/* ---- ranks ---- */

static void test_rank_round(void **state) {
    assert_int_equal(lk_rank_round(192, 0.5, 8), 96);
    assert_int_equal(lk_rank_round(192, 0.51, 8), 96);
    assert_int_equal(lk_rank_round(192, 0.53, 8), 104);
    assert_int_equal(lk_rank_round(192, 0.001, 8), 8);
    assert_int_equal(lk_rank_round(192, 1, 8), 192);
    assert_int_equal(lk_rank_round(12, 1, 8), 12);
    assert_int_equal(lk_rank_round(4, 0.1, 8), 4);
}

static double sum_of_errors(const struct lk_rank_item *item, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += item[i].error[item[i].rank - 1];
    return sum;
}

/* Errors decrease more and more slowly, so the greedy choice is optimal: compare with every
 * distribution among four items. */
static void test_rank_by_error(void **state) {
    enum { ITEMS = 4, WIDTH = 8, QUANTUM = 2 };
    struct random r = {9};
    for (int trial = 0; trial < 50; trial++) {
        float error[ITEMS][WIDTH];
        struct lk_rank_item item[ITEMS], other[ITEMS];
        for (int i = 0; i < ITEMS; i++) {
            float saving = 0.3f;
            for (int j = 0; j < WIDTH; j++)
                error[i][j] =
                    (j ? error[i][j - 1] : 1) - (saving *= 0.4f + 0.5f * random_uniform(&r));
            item[i] = other[i] = (struct lk_rank_item){.width = WIDTH, .error = error[i]};
        }
        lk_rank_uniform(other, ITEMS, 0.5, QUANTUM);
        lk_rank_by_error(item, ITEMS, 0.5, QUANTUM);
        int sum = 0;
        for (int i = 0; i < ITEMS; i++) {
            assert_true(item[i].rank >= QUANTUM && item[i].rank <= WIDTH &&
                        item[i].rank % QUANTUM == 0);
            sum += item[i].rank;
        }
        assert_int_equal(sum, ITEMS * WIDTH / 2);
        assert_true(sum_of_errors(item, ITEMS) <= sum_of_errors(other, ITEMS) + 1e-6);
        for (int code = 0; code < 256; code++) {
            int total = 0;
            for (int i = 0; i < ITEMS; i++)
                total += other[i].rank = QUANTUM * (1 + (code >> 2 * i) % 4);
            if (total == sum)
                assert_true(sum_of_errors(item, ITEMS) <= sum_of_errors(other, ITEMS) + 1e-6);
        }
    }
}

/* In proportion; what an item has no room for goes to the others; the sum equals the sum of
 * uniform ranks. */
static void test_rank_by_score(void **state) {
    struct lk_rank_item item[3] = {
        {.width = 64, .score = 1}, {.width = 64, .score = 2}, {.width = 64, .score = 3}};
    lk_rank_by_score(item, 3, 0.5, 8);
    assert_int_equal(item[0].rank, 16);
    assert_int_equal(item[1].rank, 32);
    assert_int_equal(item[2].rank, 48);
    item[2].score = 100; /* full; the others share 32 in proportion: 10.7 and 21.3 */
    lk_rank_by_score(item, 3, 0.5, 8);
    assert_int_equal(item[0].rank, 8);
    assert_int_equal(item[1].rank, 24);
    assert_int_equal(item[2].rank, 64);
    struct random r = {10};
    for (int trial = 0; trial < 100; trial++) {
        struct lk_rank_item many[20];
        int sum = 0, expected = 0;
        double share = 0.1 + 0.9 * random_uniform(&r);
        for (int i = 0; i < 20; i++)
            many[i] = (struct lk_rank_item){.width = 48, .score = exp(2 * random_gauss(&r))};
        lk_rank_by_score(many, 20, share, 8);
        for (int i = 0; i < 20; i++) {
            sum += many[i].rank;
            expected += lk_rank_round(48, share, 8);
            assert_true(many[i].rank >= 8 && many[i].rank <= 48 && many[i].rank % 8 == 0);
            for (int j = 0; j < i; j++)
                assert_true(many[i].score < many[j].score || many[i].rank >= many[j].rank - 8);
        }
        assert_int_equal(sum, expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen),         cmocka_unit_test(test_cholesky),
        cmocka_unit_test(test_whitened),      cmocka_unit_test(test_bound),
        cmocka_unit_test(test_metric),        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_equalize),      cmocka_unit_test(test_mean_pool),
        cmocka_unit_test(test_moments),       cmocka_unit_test(test_rank_round),
        cmocka_unit_test(test_rank_by_error), cmocka_unit_test(test_rank_by_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
