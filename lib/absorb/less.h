/* LESS: a state of constant size that stands for evicted rows (Dong et al. 2024, "Get More with
 * LESS", section 3).
 *
 * Two small networks map queries and keys to a few features. The product of the features
 * approximates the softmax weight exp(q.k scale):
 *
 *   phi(q) = e^bias |gelu(gelu(q W1) W2)|                         for each query head    (Eq. 1)
 *   psi(k) = |u + (u W3) s2|,   u = |s1| gelu(gelu(k W1) W2)      for each KV head       (Eq. 2)
 *
 * Eq. 2 follows the authors' code: W3 is inside a residual, and the "learnable scalars" are vectors
 * s1 and s2 over features. `bias` is an addition, 0 in the paper: the softmax sums of heads differ
 * by orders of magnitude, and the bias spares the weights from having to represent that.
 *
 * The state of a KV head has one row for each feature, summed over all evicted rows (Eq. 4, 5):
 *
 *            d_head values               1
 *          +---------------------------+---+
 *   r = 0  | H_0 = sum psi(k)_0 v      |z_0|    [n_feature][d_head + 1] floats
 *   r = 1  | H_1 = sum psi(k)_1 v      |z_1|
 *          |            ...            |...|
 *          +---------------------------+---+
 *
 * Eq. 3 divides phi H + sum e^s v by phi z + sum e^s. Here the state's part is returned as one more
 * partial softmax whose maximum is the logarithm of its sum, so joining it to the others cannot
 * overflow. */
#ifndef LK_ABSORB_LESS_H
#define LK_ABSORB_LESS_H

#include "kernels/kernels.h"

#include <stddef.h>

struct lk_less_shape {
    int n_head, n_head_kv, d_head;
    int n_hidden, n_feature; /* R' and R */
    int n_phi; /* number of phi: n_head, n_head_kv (shared by the heads of a group), or 1 */
    int n_psi; /* number of psi: n_head_kv or 1 */
};

enum { LK_LESS_MAX_FEATURE = 64, LK_LESS_MAX_HIDDEN = 4096 };

/* The feature maps of one layer. Pointers are borrowed. Each decoding step reads all of phi. */
struct lk_less_maps {
    const uint16_t *phi_w1; /* [n_phi][d_head][n_hidden] f16 */
    const uint16_t *phi_w2; /* [n_phi][n_hidden][n_feature] f16 */
    const float *phi_bias;  /* [n_head] */
    const uint16_t *psi_w1; /* [n_psi][d_head][n_hidden] f16 */
    const uint16_t *psi_w2; /* [n_psi][n_hidden][n_feature] f16 */
    const float *psi_w3;    /* [n_psi][n_feature][n_feature], inputs by outputs */
    const float *psi_s1;    /* [n_psi][n_feature] */
    const float *psi_s2;    /* [n_psi][n_feature] */
    const struct lk_kernels *kernels;
};

/* Features of a query of head `head`, without e^bias, and of a key of KV head `head`. x [d_head],
 * out [n_feature], work [n_hidden]. */
void lk_less_phi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work);
void lk_less_psi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work);

/* Floats of one KV head's state. The empty state is all zeros. */
size_t lk_less_state_floats(const struct lk_less_shape *shape);

/* Add a row to the state of its KV head: features psi [n_feature] of the key, and v [d_head]. */
void lk_less_absorb(const struct lk_less_shape *shape, float *state, const float *psi,
                    const float *v);

/* The state as a partial softmax for a query with features phi [n_feature]. out [d_head] is the
 * weighted mean of the evicted values. *log_sum is the logarithm of the sum of their weights,
 * including e^bias; it is also the partial softmax's maximum, relative to which its sum is 1. An
 * empty state gives -infinity and zeros. */
void lk_less_read(const struct lk_less_shape *shape, const float *state, const float *phi,
                  float bias, float *out, float *log_sum);

/* Join that partial softmax to the attention over the remaining rows. mean [d_head] becomes the
 * weighted mean of both, *log_sum the logarithm of the sum of all weights. */
void lk_less_mix(int d_head, float *mean, float *log_sum, const float *state_mean,
                 float state_log_sum);

/* Bytes of one layer's networks, and of its states. */
size_t lk_less_map_bytes(const struct lk_less_shape *shape);
size_t lk_less_state_bytes(const struct lk_less_shape *shape);

#endif
