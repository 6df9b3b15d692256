/* Bases of low rank from second moments.
 *
 * The rows y of a layer's K or V have the second moment M = sum y y^T. The projection of rank r
 * with the least error sum |y - P y|^2 is the one onto the first r eigenvectors of M. Its error is
 * the sum of the other eigenvalues.
 *
 * This is Palu's truncation-aware ("whitened") SVD of a weight matrix (section 3.1 and appendix K,
 * after SVD-LLM). There, y = W x, S S^T = sum x x^T is a Cholesky factorization, W S = U Sigma V^T,
 * and W is replaced by U_r (Sigma_r V_r^T S^-1). Now (W S)(W S)^T = W (sum x x^T) W^T = M. So U
 * holds the eigenvectors of M, Sigma^2 its eigenvalues, and the replacement is
 *
 *   U_r Sigma_r V_r^T S^-1 = U_r U_r^T (W S) S^-1 = U_r U_r^T W,
 *
 * which projects y = W x onto the first r eigenvectors of M. This needs neither the moments of the
 * inputs (n_embd^2 numbers) nor the weights. It also works for rows after RoPE, which are not a
 * product with a weight matrix. It equals SVD-a of "Effectively Compress KV Heads for LLM" (section
 * 3.3), which takes the singular vectors of the rows from K^T K. Plain SVD of W is the case sum x
 * x^T = I: the eigenvectors of W W^T.
 *
 * Errors may have different costs in different directions. An error e of a key costs e^T (sum q
 * q^T) e in scores, an error of a value e^T (W_O^T W_O) e in the residual stream. For a metric G =
 * L L^T, the rows L^T y are projected instead: with E the eigenvectors of L^T M L, z = E^T L^T y
 * and y ~ L^-T E z. */
#ifndef LK_LOWRANK_FIT_H
#define LK_LOWRANK_FIT_H

#include "base/err.h"
#include "base/ledger.h"

/* The basis of one group, in double precision. */
struct lk_fit {
    int32_t width;
    /* [width][width] each: row j is component j, the most important first; see sidecar/basis.h. */
    double *down, *up;
    double *gain; /* [width] by how much component j lowers sum |y - x'|^2 */
    double *work; /* [width][width] */
    struct lk_ledger *ledger;
};

lk_status lk_fit_new(struct lk_fit *fit, int width, struct lk_ledger *ledger, lk_err *err);
void lk_fit_free(struct lk_fit *fit);

/* Compute all components of `second` [width][width], symmetric and stored whole (W W^T for plain
 * SVD), and their gain. metric [width][width]: symmetric positive semidefinite, to which a small
 * multiple of the identity is added; NULL: the identity. */
lk_status lk_fit_eigen(struct lk_fit *fit, const double *second, const double *metric, lk_err *err);

/* Mean pooling of the heads in a group (the baseline of "Effectively Compress KV Heads", equations
 * 5 and 6) as a projection onto what all heads have in common: d_head components, the others
 * zero. */
void lk_fit_mean_pool(struct lk_fit *fit, int d_head);

/* Compute gain for rows with this second moment. They may differ from the rows that the
 * basis was made from. */
void lk_fit_measure(struct lk_fit *fit, const double *second);

/* Divide the spread of the latents evenly between both factors: z_j is divided by the fourth root
 * of its power, so that the factors are U sqrt(Sigma) and sqrt(Sigma) V^T (Palu's equation 4, and
 * TALE). The error of a rank stays the same; the error of quantizing z becomes smaller. */
void lk_fit_balance(struct lk_fit *fit, const double *second);

/* Instead, divide z_j by the square root of the ratio of its deviation to that of the queries q_j =
 * up_j q: what cache/equalizer.h finds in a session, but the same for all sessions. second: of the
 * rows, central; queries [width][width]: their second moment. */
void lk_fit_equalize(struct lk_fit *fit, const double *second, const double *queries);

#endif
