/* LESS: a state of constant size that stands for the rows that were dropped (Dong et al. 2024, section 3).
 *
 * Two small networks turn queries and keys into a few features whose product is meant to be what the
 * softmax would have seen, exp(q.k scale):
 *
 *   phi(q) = e^level |gelu(gelu(q W1) W2)|                                         for each query head  (Eq. 1)
 *   psi(k) = |u + (u W3) s2|,   u = |s1| gelu(gelu(k W1) W2)                       for each KV head     (Eq. 2)
 *
 * Eq. 2 is meant as the authors' code has it: W3 inside a residual, and the "learnable scalars" are the
 * vectors s1 and s2 over features. `level` is ours, zero in the paper: the features of a head are of the
 * size of its softmax sums, which differ by orders of magnitude from head to head, so that no weight has to.
 *
 * A KV head's state is one row for each feature, all dropped rows summed up (Eq. 4, 5):
 *
 *            d_head values               1
 *          +---------------------------+---+
 *   r = 0  | H_0 = sum psi(k)_0 v      |z_0|    one after the other, [n_feature][d_head + 1] floats
 *   r = 1  | H_1 = sum psi(k)_1 v      |z_1|
 *          |            ...            |...|
 *          +---------------------------+---+
 *
 * Eq. 3 divides phi H + sum e^s v by phi z + sum e^s. The state's part is handed out as one more partial
 * softmax, its maximum the logarithm of its sum, so it mixes with the others without overflow. */
#ifndef LK_ABSORB_LESS_H
#define LK_ABSORB_LESS_H

#include "kernels/kernels.h"

#include <stddef.h>

struct lk_less_shape {
    int n_head, n_head_kv, d_head;
    int n_hidden, n_feature; /* R' and R */
    int n_phi; /* different phi: n_head, n_head_kv (one for the heads of a group), or 1 */
    int n_psi; /* different psi: n_head_kv or 1 */
};

enum { LK_LESS_MAX_FEATURE = 64, LK_LESS_MAX_HIDDEN = 4096 };

/* The networks of one layer; borrowed. */
struct lk_less_maps {
    const uint16_t
        *phi_w1; /* [n_phi][d_head][n_hidden] half floats, of which a step reads them all */
    const uint16_t *phi_w2;       /* [n_phi][n_hidden][n_feature] */
    const float *phi_level;       /* [n_head] */
    const uint16_t *psi_w1;       /* [n_psi][d_head][n_hidden] */
    const uint16_t *psi_w2;       /* [n_psi][n_hidden][n_feature] */
    const float *psi_w3;          /* [n_psi][n_feature][n_feature], inputs by outputs */
    const float *psi_s1, *psi_s2; /* [n_psi][n_feature] */
    const float *
        random; /* directions [n_feature][d_head] of features that nobody trained, in place of all networks
                               (performer.h); or NULL */
    float scale;                      /* with them: the softmax's */
    const struct lk_kernels *kernels; /* what computes */
};

/* Features of a query of head `head`, without e^level, and of a key of KV head `head`. x [d_head],
 * out [n_feature], work [n_hidden]. */
void lk_less_phi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work);
void lk_less_psi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work);

/* Floats of one KV head's state; zeros are the empty state. */
size_t lk_less_state_floats(const struct lk_less_shape *shape);

/* Take a row into the state of its KV head: psi [n_feature] of its key, v [d_head]. */
void lk_less_absorb(const struct lk_less_shape *shape, float *state, const float *psi,
                    const float *v);

/* The state as a partial softmax for a query with features phi [n_feature]: out [d_head] is the mean of
 * the dropped values, *log_sum the logarithm of the sum of their weights, level included; the partial's
 * maximum is *log_sum and its sum 1. An empty state gives -infinity, and zeros. */
void lk_less_read(const struct lk_less_shape *shape, const float *state, const float *phi,
                  float level, float *out, float *log_sum);

/* Join that partial to attention over the rows that are still there: mean [d_head] becomes the mean of
 * both, *log_sum the logarithm of the sum of all weights. */
void lk_less_mix(int d_head, float *mean, float *log_sum, const float *state_mean,
                 float state_log_sum);

/* Bytes that a layer's networks and its state take. */
size_t lk_less_map_bytes(const struct lk_less_shape *shape);
size_t lk_less_state_bytes(const struct lk_less_shape *shape);

#endif
