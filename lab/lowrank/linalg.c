/* Calls of OpenBLAS and LAPACK. */
#include "lowrank/linalg.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdbool.h>

void lk_gram_add(double *c, int n, const double *x, int64_t rows, int64_t stride) {
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, n, (int)rows, 1, x, (int)stride, 1, c, n);
}

/* LAPACK sees a row-major matrix transposed. A symmetric one stays the same, and its columns, the
 * eigenvectors, become our rows. LAPACK sorts by increasing eigenvalues: reverse that. */
static void reverse_eigenvectors(double *a, int n, double *value) {
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        double swap = value[i];
        value[i] = value[j];
        value[j] = swap;
        cblas_dswap(n, a + (size_t)i * n, 1, a + (size_t)j * n, 1);
    }
}

static bool all_finite(const double *x, int n) {
    int i = 0;
    while (i < n && isfinite(x[i])) i++;
    return i == n;
}

lk_status lk_eigen(double *a, int n, double *value, struct lk_ledger *ledger, lk_err *err) {
    double n_work_needed = 0;
    lapack_int n_int = 0;
    if (LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, a, n, value, &n_work_needed, -1, &n_int,
                            -1) != 0)
        return lk_fail(err, LK_E_ARG, "LAPACK rejects an eigenproblem of %d rows", n);
    size_t n_work = (size_t)n_work_needed, size = n_work * sizeof(double),
           int_size = (size_t)n_int * sizeof(lapack_int);
    double *work = lk_alloc(ledger, LK_FOR_SCRATCH, size);
    lapack_int *int_work = lk_alloc(ledger, LK_FOR_SCRATCH, int_size);
    lk_status status = LK_OK;
    if (!work || !int_work) {
        status = lk_fail(err, LK_E_NOMEM, "no memory for an eigenproblem of %d rows", n);
    } else if (LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, a, n, value, work,
                                   (lapack_int)n_work, int_work, n_int) != 0 ||
               !all_finite(value, n)) { /* LAPACK may call NaN a solution */
        status = lk_fail(err, LK_E_ARG,
                         "an eigenproblem of %d rows does not converge; check that all values are "
                         "finite",
                         n);
    } else {
        reverse_eigenvectors(a, n, value);
    }
    lk_release(ledger, LK_FOR_SCRATCH, work, size);
    lk_release(ledger, LK_FOR_SCRATCH, int_work, int_size);
    return status;
}

lk_status lk_cholesky(double *a, int n, lk_err *err) {
    /* The upper triangle in column-major order is our lower one: U^T U = L L^T with L = U^T. */
    if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, a, n) != 0)
        return lk_fail(err, LK_E_ARG, "a matrix of %d rows is not positive definite", n);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) a[(size_t)i * n + j] = 0;
    return LK_OK;
}

void lk_tri_mul_left_t(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_tri_mul_right(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_tri_mul_right_t(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_tri_solve_right(double *b, const double *l, int n) {
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_matmul(double *c, const double *a, const double *b, int m, int n, int k) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
}

void lk_matmul_nt(double *c, const double *a, const double *b, int m, int n, int k) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, a, k, b, k, 0, c, n);
}
