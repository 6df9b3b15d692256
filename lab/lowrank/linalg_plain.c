/* The functions of linalg.h as plain loops, for builds without OpenBLAS and LAPACK: many times
 * slower for large matrices, with the same results but for rounding. */
#include "lowrank/linalg.h"

#include <math.h>
#include <string.h>

void lk_gram_add(double *c, int n, const double *x, int64_t rows, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            double value = x[r * stride + i];
            for (int j = 0; j <= i; j++) c[(size_t)i * n + j] += value * x[r * stride + j];
        }
}

/* Rotate two numbers by an angle with this cosine and sine. */
static void rotate(double *x, double *y, double c, double s) {
    double old = *x;
    *x = c * old - s * *y;
    *y = s * old + c * *y;
}

/* Sum of squares off the diagonal. */
static double off_diagonal(const double *a, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) sum += i == j ? 0 : a[(size_t)i * n + j] * a[(size_t)i * n + j];
    return sum;
}

/* One rotation of Jacobi's method, which makes a[p][q] zero; v holds eigenvectors as rows. */
static void eliminate(double *a, double *v, int n, int p, int q) {
    double off = a[(size_t)p * n + q];
    if (off == 0) return;
    double theta = (a[(size_t)q * n + q] - a[(size_t)p * n + p]) / (2 * off);
    double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int k = 0; k < n; k++) rotate(&a[(size_t)k * n + p], &a[(size_t)k * n + q], c, s);
    for (int k = 0; k < n; k++) rotate(&a[(size_t)p * n + k], &a[(size_t)q * n + k], c, s);
    for (int k = 0; k < n; k++) rotate(&v[(size_t)p * n + k], &v[(size_t)q * n + k], c, s);
}

static void swap(double *x, double *y) {
    double old = *x;
    *x = *y;
    *y = old;
}

/* Sort rows by decreasing values. */
static void sort_rows(double *v, double *value, int n) {
    for (int i = 0; i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++)
            if (value[j] > value[best]) best = j;
        swap(&value[i], &value[best]);
        for (int k = 0; k < n; k++) swap(&v[(size_t)i * n + k], &v[(size_t)best * n + k]);
    }
}

lk_status lk_eigen(double *a, int n, double *value, struct lk_ledger *ledger, lk_err *err) {
    enum { MAX_SWEEPS = 60 };
    size_t size = (size_t)n * n * sizeof(double);
    double *v = lk_alloc(ledger, LK_FOR_SCRATCH, size), scale = 0;
    if (!v) return lk_fail(err, LK_E_NOMEM, "no memory for an eigenproblem of %d rows", n);
    lk_symmetrize(a, n);
    for (int i = 0; i < n; i++) v[(size_t)i * n + i] = 1;
    for (int i = 0; i < n; i++) scale += a[(size_t)i * n + i] * a[(size_t)i * n + i];
    scale += off_diagonal(a, n);
    bool done = scale == 0;
    for (int sweep = 0; !done && isfinite(scale) && sweep < MAX_SWEEPS; sweep++) {
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) eliminate(a, v, n, p, q);
        done = off_diagonal(a, n) <= 1e-30 * scale;
    }
    for (int i = 0; i < n; i++) value[i] = a[(size_t)i * n + i];
    if (done) {
        sort_rows(v, value, n);
        memcpy(a, v, size);
    }
    lk_release(ledger, LK_FOR_SCRATCH, v, size);
    if (done) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "an eigenproblem of %d rows does not converge; check that all values are finite",
                   n);
}

/* Sum of a[k * a_step] * b[k * b_step] for k in [begin, end). */
static double dot(const double *a, int a_step, const double *b, int b_step, int begin, int end) {
    double sum = 0;
    for (int k = begin; k < end; k++) sum += a[(size_t)k * a_step] * b[(size_t)k * b_step];
    return sum;
}

lk_status lk_cholesky(double *a, int n, lk_err *err) {
    for (int i = 0; i < n; i++) {
        double *row = a + (size_t)i * n;
        for (int j = 0; j <= i; j++) {
            const double *above = a + (size_t)j * n;
            double left = row[j] - dot(row, 1, above, 1, 0, j);
            if (i == j && !(left > 0))
                return lk_fail(err, LK_E_ARG, "a matrix of %d rows is not positive definite", n);
            row[j] = i == j ? sqrt(left) : left / above[j];
        }
        memset(row + i + 1, 0, (size_t)(n - i - 1) * sizeof *row);
    }
    return LK_OK;
}

/* Row i of l^T b needs rows i and after of b. */
void lk_tri_mul_left_t(double *b, const double *l, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) b[(size_t)i * n + j] = dot(l + i, n, b + j, n, i, n);
}

void lk_tri_mul_right(double *b, const double *l, int n) {
    for (double *row = b; row < b + (size_t)n * n; row += n)
        for (int j = 0; j < n; j++) row[j] = dot(row, 1, l + j, n, j, n);
}

void lk_tri_mul_right_t(double *b, const double *l, int n) {
    for (double *row = b; row < b + (size_t)n * n; row += n)
        for (int j = n; j-- > 0;) row[j] = dot(row, 1, l + (size_t)j * n, 1, 0, j + 1);
}

void lk_tri_solve_right(double *b, const double *l, int n) {
    for (double *row = b; row < b + (size_t)n * n; row += n)
        for (int j = n; j-- > 0;)
            row[j] = (row[j] - dot(row, 1, l + j, n, j + 1, n)) / l[(size_t)j * n + j];
}

void lk_matmul(double *c, const double *a, const double *b, int m, int n, int k) {
    memset(c, 0, (size_t)m * n * sizeof *c);
    for (int i = 0; i < m; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                c[(size_t)i * n + j] += a[(size_t)i * k + l] * b[(size_t)l * n + j];
}

void lk_matmul_nt(double *c, const double *a, const double *b, int m, int n, int k) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            c[(size_t)i * n + j] = dot(a + (size_t)i * k, 1, b + (size_t)j * k, 1, 0, k);
}
