/* Dense linear algebra in double precision: thin, checked calls of OpenBLAS and LAPACK, or plain
 * loops without them (linalg_plain.c).
 *
 * Matrices are row-major, [rows][columns]. Symmetric ones are stored whole unless stated
 * otherwise. */
#ifndef LK_LOWRANK_LINALG_H
#define LK_LOWRANK_LINALG_H

#include "base/err.h"
#include "base/ledger.h"

/* c [n][n] += x^T x for x [rows][n] with row stride `stride`; only the lower triangle of c. */
void lk_gram_add(double *c, int n, const double *x, int64_t rows, int64_t stride);

/* Copy the lower triangle of a [n][n] to the upper one. */
static inline void lk_symmetrize(double *a, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) a[(size_t)j * n + i] = a[(size_t)i * n + j];
}

/* Eigenvectors of symmetric a [n][n], in place: row j is the j-th eigenvector, of length 1, in
 * order of decreasing eigenvalues, which go to value [n]. Work memory comes from `ledger`. LK_E_ARG
 * if that does not converge, as with values that are not finite. */
lk_status lk_eigen(double *a, int n, double *value, struct lk_ledger *ledger, lk_err *err);

/* a = L L^T of a symmetric positive definite matrix, in place: L below and on the diagonal, zero
 * above. LK_E_ARG if a is not positive definite. */
lk_status lk_cholesky(double *a, int n, lk_err *err);

/* Products of b [n][n] with a lower triangular l [n][n]. */
void lk_tri_mul_left_t(double *b, const double *l, int n);  /* b = l^T b */
void lk_tri_mul_right(double *b, const double *l, int n);   /* b = b l */
void lk_tri_mul_right_t(double *b, const double *l, int n); /* b = b l^T */
void lk_tri_solve_right(double *b, const double *l, int n); /* b = b l^-1 */

/* c [m][n] = a [m][k] b [k][n]. */
void lk_matmul(double *c, const double *a, const double *b, int m, int n, int k);

/* c [m][n] = a [m][k] b^T, b [n][k]. */
void lk_matmul_nt(double *c, const double *a, const double *b, int m, int n, int k);

#endif
