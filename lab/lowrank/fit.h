/* Bases of low rank from second moments.
 *
 * Rows y of a layer's K or V have the second moment M = sum y y^T. The matrix of rank r that loses least of
 * the rows, sum |y - P y|^2, projects on the r first eigenvectors of M; what is lost is the sum of the other
 * eigenvalues.
 *
 * This is Palu's truncation-aware ("whitened") SVD of a weight matrix (section 3.1 and appendix K, after
 * SVD-LLM). There y = W x, S S^T = sum x x^T is a Cholesky factorisation, W S = U Sigma V^T, and W is replaced
 * by U_r (Sigma_r V_r^T S^-1). Now (W S)(W S)^T = W (sum x x^T) W^T = M, so U are the eigenvectors of M and
 * Sigma^2 its eigenvalues, and the replacement is
 *
 *   U_r Sigma_r V_r^T S^-1 = U_r U_r^T (W S) S^-1 = U_r U_r^T W,
 *
 * which projects y = W x on the first r eigenvectors of M. Neither the inputs' moments (n_embd^2 numbers) nor
 * the weights are needed; and it works for rows behind RoPE, which no weight matrix gives. It is also SVD-a of
 * "Effectively Compress KV Heads for LLM" (section 3.3), where the singular vectors of the rows themselves are
 * found from K^T K. Plain SVD of W is the case sum x x^T = I: eigenvectors of W W^T.
 *
 * Errors of rows may count differently in different directions: an error e of a key costs e^T (sum q q^T) e in
 * scores, one of a value e^T (W_O^T W_O) e in the residual stream. For a metric G = L L^T, rows L^T y are
 * projected instead: with E the eigenvectors of L^T M L, z = E^T L^T y and y ~ L^-T E z. */
#ifndef LK_LOWRANK_FIT_H
#define LK_LOWRANK_FIT_H

#include "lowrank/moments.h"

/* One group's basis in double precision. */
struct lk_fit {
    int32_t width;
    double *down,
        *up; /* [width][width]: row j is component j, most important first; see sidecar/basis.h */
    double *gain; /* [width] by how much component j lowers sum |y - x'|^2 */
    double *work; /* [width][width] */
    struct lk_ledger *ledger;
};

lk_status lk_fit_new(struct lk_fit *fit, int width, struct lk_ledger *ledger, lk_err *err);
void lk_fit_free(struct lk_fit *fit);

/* Components of the symmetric `second` [width][width], whole. metric: [width][width], symmetric positive
 * semidefinite (a small multiple of the identity is added), or NULL: the identity. With weights, `second` is
 * W W^T. gain is filled from the same moments. */
lk_status lk_fit_eigen(struct lk_fit *fit, const double *second, const double *metric, lk_err *err);

/* Mean pooling of the heads in a group (the baseline of KV heads, equations 5 and 6) as a projection on what all
 * heads have in common: d_head components; the others are zero. */
void lk_fit_mean_pool(struct lk_fit *fit, int d_head);

/* Fill gain for the rows behind `second`, which need not be those that the basis was made from. */
void lk_fit_measure(struct lk_fit *fit, const double *second);

/* Share the spread of the latents between both factors: z_j is divided by the fourth root of its power, so that
 * factors are U sqrt(Sigma) and sqrt(Sigma) V^T (Palu's equation 4, TALE's). What a rank loses stays
 * the same; what quantising z loses becomes less. `second`: as for lk_fit_measure. */
void lk_fit_balance(struct lk_fit *fit, const double *second);

#endif
