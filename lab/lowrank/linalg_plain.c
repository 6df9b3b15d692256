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

void lk_symmetrize(double *a, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) a[(size_t)j * n + i] = a[(size_t)i * n + j];
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

/* Sort rows by decreasing values. */
static void sort_rows(double *v, double *value, int n) {
    for (int i = 0; i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++)
            if (value[j] > value[best]) best = j;
        for (int k = 0; k < n && best != i; k++)
            rotate(&v[(size_t)i * n + k], &v[(size_t)best * n + k], 0, -1);
        double swap = value[i];
        value[i] = value[best];
        value[best] = swap;
        for (int k = 0; k < n && best != i; k++) v[(size_t)best * n + k] *= -1;
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
    bool done = !(scale > 0) && scale == 0;
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

lk_status lk_cholesky(double *a, int n, lk_err *err) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = a[(size_t)i * n + j];
            for (int k = 0; k < j && j <= i; k++)
                sum -= a[(size_t)i * n + k] * a[(size_t)j * n + k];
            if (i == j && !(sum > 0))
                return lk_fail(err, LK_E_ARG, "a matrix of %d rows is not positive definite", n);
            a[(size_t)i * n + j] = j > i ? 0 : i == j ? sqrt(sum) : sum / a[(size_t)j * n + j];
        }
    return LK_OK;
}

/* Row i of l^T b needs rows i and after of b. */
void lk_tri_mul_left_t(double *b, const double *l, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = i; k < n; k++) sum += l[(size_t)k * n + i] * b[(size_t)k * n + j];
            b[(size_t)i * n + j] = sum;
        }
}

void lk_tri_mul_right(double *b, const double *l, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = j; k < n; k++) sum += b[(size_t)i * n + k] * l[(size_t)k * n + j];
            b[(size_t)i * n + j] = sum;
        }
}

void lk_tri_mul_right_t(double *b, const double *l, int n) {
    for (int i = 0; i < n; i++)
        for (int j = n; j-- > 0;) {
            double sum = 0;
            for (int k = 0; k <= j; k++) sum += b[(size_t)i * n + k] * l[(size_t)j * n + k];
            b[(size_t)i * n + j] = sum;
        }
}

void lk_tri_solve_right(double *b, const double *l, int n) {
    for (int i = 0; i < n; i++)
        for (int j = n; j-- > 0;) {
            double sum = b[(size_t)i * n + j];
            for (int k = j + 1; k < n; k++) sum -= b[(size_t)i * n + k] * l[(size_t)k * n + j];
            b[(size_t)i * n + j] = sum / l[(size_t)j * n + j];
        }
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
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += a[(size_t)i * k + l] * b[(size_t)j * k + l];
            c[(size_t)i * n + j] = sum;
        }
}
