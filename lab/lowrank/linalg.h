/* Dense linear algebra in double precision: thin, checked calls of OpenBLAS and LAPACK.
 *
 * Matrices are row-major, [rows][columns]. Symmetric ones are given whole unless said otherwise. */
#ifndef LK_LOWRANK_LINALG_H
#define LK_LOWRANK_LINALG_H

#include "base/err.h"
#include "base/ledger.h"

/* c [n][n] += x^T x for x [rows][n] with row stride `stride`; the lower triangle only. */
void lk_gram_add(double *c, int n, const double *x, int64_t rows, int64_t stride);

/* Copy the lower triangle of a [n][n] to the upper one. */
void lk_mirror(double *a, int n);

/* Eigenvectors of symmetric a [n][n], in place: row j is the j-th, of length 1, in order of falling
 * eigenvalues, which go to value [n]. Work memory comes from `ledger`. LK_E_ARG where LAPACK gives up, which
 * it does on values that are not finite. */
lk_status lk_eigen(double *a, int n, double *value, struct lk_ledger *ledger, lk_err *err);

/* a = L L^T of a symmetric positive definite matrix, in place: L below and on the diagonal, zero above.
 * LK_E_ARG where a is not positive definite. */
lk_status lk_cholesky(double *a, int n, lk_err *err);

/* Products with a lower triangular l [n][n]. */
void lk_from_left_transposed(double *b, const double *l, int n);  /* b [n][n] = l^T b */
void lk_from_right(double *b, const double *l, int n);            /* b [n][n] = b l */
void lk_from_right_transposed(double *b, const double *l, int n); /* b [n][n] = b l^T */
void lk_from_right_inverse(double *b, const double *l, int n);    /* b [n][n] = b l^-1 */

/* c [m][n] = a [m][k] b [k][n]. */
void lk_multiply(double *c, const double *a, const double *b, int m, int n, int k);

/* c [m][n] = a [m][k] b^T, b [n][k]. */
void lk_multiply_transposed(double *c, const double *a, const double *b, int m, int n, int k);

#endif
