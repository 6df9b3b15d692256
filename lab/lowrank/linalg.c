#include "lowrank/linalg.h"

#include <cblas.h>
#include <lapacke.h>

void lk_gram_add(double *c, int n, const double *x, int64_t rows, int64_t stride) {
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, n, (int)rows, 1, x, (int)stride, 1, c, n);
}

void lk_mirror(double *a, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) a[(size_t)j * n + i] = a[(size_t)i * n + j];
}

/* LAPACK sees a row-major matrix transposed: the same one where it is symmetric, and its columns, the
 * eigenvectors, are our rows. It sorts by rising eigenvalues. */
static void reverse_rows(double *a, int n, double *value) {
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        double held = value[i];
        value[i] = value[j];
        value[j] = held;
        cblas_dswap(n, a + (size_t)i * n, 1, a + (size_t)j * n, 1);
    }
}

lk_status lk_eigen(double *a, int n, double *value, struct lk_ledger *ledger, lk_err *err) {
    double want = 0;
    lapack_int want_int = 0;
    if (LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, a, n, value, &want, -1, &want_int, -1) !=
        0)
        return lk_fail(err, LK_E_ARG, "LAPACK refuses an eigenproblem of %d rows", n);
    size_t n_work = (size_t)want, size = n_work * sizeof(double),
           int_size = (size_t)want_int * sizeof(lapack_int);
    double *work = lk_alloc(ledger, LK_FOR_SCRATCH, size);
    lapack_int *int_work = lk_alloc(ledger, LK_FOR_SCRATCH, int_size);
    lk_status status = LK_OK;
    if (!work || !int_work) {
        status = lk_fail(err, LK_E_NOMEM, "no memory for an eigenproblem of %d rows", n);
    } else if (LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, a, n, value, work,
                                   (lapack_int)n_work, int_work, want_int) != 0) {
        status = lk_fail(
            err, LK_E_ARG,
            "an eigenproblem of %d rows has no solution in floating point; are all values finite?",
            n);
    } else {
        reverse_rows(a, n, value);
    }
    lk_release(ledger, LK_FOR_SCRATCH, work, size);
    lk_release(ledger, LK_FOR_SCRATCH, int_work, int_size);
    return status;
}

lk_status lk_cholesky(double *a, int n, lk_err *err) {
    /* The upper triangle in column-major order is ours below the diagonal: U^T U = L L^T with L = U^T. */
    if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, a, n) != 0)
        return lk_fail(err, LK_E_ARG, "a matrix of %d rows is not positive definite", n);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) a[(size_t)i * n + j] = 0;
    return LK_OK;
}

void lk_from_left_transposed(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_from_right(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_from_right_transposed(double *b, const double *l, int n) {
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_from_right_inverse(double *b, const double *l, int n) {
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, l, n, b,
                n);
}

void lk_multiply(double *c, const double *a, const double *b, int m, int n, int k) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
}

void lk_multiply_transposed(double *c, const double *a, const double *b, int m, int n, int k) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, a, k, b, k, 0, c, n);
}
