/* Fits the low-rank bases of K or V for all layers of a model. */
#ifndef LK_LOWRANK_LAYER_BASIS_H
#define LK_LOWRANK_LAYER_BASIS_H

#include "base/err.h"
#include "base/ledger.h"
#include "lowrank/compress_plan.h"

/* A layer's basis with all components, until they are truncated. Its arrays share one
 * allocation. */
struct lk_layer_basis {
    struct lk_basis basis; /* its pointers are those below */
    float *down, *up;      /* up == down if both are the same */
    float *mean, *error;   /* mean may be NULL */
    int32_t *rank;
    double *power; /* [n_group] sum |x|^2 */
    /* Sums over groups of singular values of the rows: all, the largest quarter and half. */
    double singular, singular_quarter, singular_half;
    void *memory;
    size_t bytes;
};

/* What bases are fitted to. */
struct lk_basis_source {
    const struct lk_compress_plan *plan;
    const struct lk_net *net;
    const struct lk_statistics *statistics; /* NULL without a text */
    struct lk_ledger *ledger;
};

/* Fit the bases of one side: out [n_layer], zeroed. layer_done is called after each layer, with
 * `user`; false cancels. After a failure the caller still frees `out`. */
lk_status lk_fit_layers(struct lk_layer_basis *out, const struct lk_basis_source *source,
                        enum lk_basis_side side, bool (*layer_done)(void *user), void *user,
                        lk_err *err);
void lk_layer_basis_free(struct lk_layer_basis *b, struct lk_ledger *ledger);

/* Keep only the components that the ranks of some group need. */
void lk_layer_basis_truncate(struct lk_layer_basis *b);

/* The basis with numbers of another type, in memory of `ledger` and borrowing what does not change.
 * Free *mem [*bytes], which is for LK_FOR_OTHER, after the basis. LK_E_NOMEM. */
lk_status lk_layer_basis_pack(const struct lk_layer_basis *b, enum lk_basis_type type,
                              struct lk_ledger *ledger, struct lk_basis *out, void **mem,
                              size_t *bytes, lk_err *err);

/* Share of the power of the layer's rows that is lost at its ranks. */
double lk_layer_basis_loss(const struct lk_layer_basis *b);

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
