/* Layers that keep a state of constant size instead of rows of K and V.
 *
 * A token's projections, the rows of q, k and v of all heads, first go through a causal convolution
 * of each channel over n_conv tokens. Two kinds then continue with SiLU, and update a state S
 * [d_key][d_value] of each value head. k and v are a head's rows:
 *
 *   LK_DELTA_RULE   a gated delta rule (Gated DeltaNet, Yang et al. 2025, Eq. 10), with d_key =
 *                   d_value, and q and k scaled to length 1:
 *                     S = exp(decay) S             decay <= 0
 *                     S = S + k (beta (v - S^T k))^T
 *                     out = S^T q / sqrt(d_key)
 *
 *   LK_STATE_SPACE  a state space model with one decay per head (Mamba-2, Dao and Gu 2024); there,
 *                   q is called C, k is B, v is x, and beta is Delta:
 *                     S = exp(decay) S + k (beta v)^T
 *                     out = S^T q + skip v
 *
 *   LK_SHORT_CONV   the convolution alone (LFM2). It has no heads: n_k_head is 0, n_v_head 1, and
 *                   d_value the number of channels.
 *
 * Value head h has the q and k of head h mod n_k_head or, with `adjacent`, of head
 * h / (n_v_head / n_k_head).
 *
 * A row of projections:
 *
 *   LK_DELTA_RULE   | q [n_k_head][d_key] | k [n_k_head][d_key] | v [n_v_head][d_value] |
 *   LK_STATE_SPACE  | v [n_v_head][d_value] | k [n_k_head][d_key] | q [n_k_head][d_key] |
 *
 * A layer's state in memory, f32:
 *
 *   | the last n_conv - 1 rows of projections, oldest first [n_conv - 1][channels] |
 *   | S of all heads [n_v_head][d_key][d_value], unless LK_SHORT_CONV              |
 */
#ifndef LK_KERNELS_RECURRENCE_H
#define LK_KERNELS_RECURRENCE_H

#include <stdbool.h>
#include <stddef.h>

struct lk_kernels;

enum lk_recurrence_kind { LK_DELTA_RULE, LK_STATE_SPACE, LK_SHORT_CONV };

struct lk_recurrence_shape {
    enum lk_recurrence_kind kind;
    int n_k_head, n_v_head; /* the second is a multiple of the first */
    int d_key, d_value;     /* channels of a head; d_value is a multiple of 16 */
    int n_conv;             /* tokens of the convolution, at least 2 */
    float norm_eps;         /* added to the squared lengths of q and k */
    bool adjacent;          /* the value heads of a key head are adjacent */
};

enum { LK_MAX_D_STATE = 256 }; /* of d_key */

/* Weights of the convolution, and of LK_STATE_SPACE. */
struct lk_recurrence_weights {
    const float *conv;   /* [channels][n_conv], the newest token's last */
    const float *conv_b; /* [channels], or NULL */
    const float *skip;   /* [n_v_head]; of LK_STATE_SPACE only */
};

/* Channels of a row of projections. */
static inline int lk_recurrence_channels(const struct lk_recurrence_shape *shape) {
    return 2 * shape->n_k_head * shape->d_key + shape->n_v_head * shape->d_value;
}

static inline size_t lk_recurrence_conv_floats(const struct lk_recurrence_shape *shape) {
    return (size_t)(shape->n_conv - 1) * lk_recurrence_channels(shape);
}

/* Floats of a layer's state. */
static inline size_t lk_recurrence_state_floats(const struct lk_recurrence_shape *shape) {
    size_t heads = (size_t)shape->n_v_head * shape->d_key * shape->d_value;
    return lk_recurrence_conv_floats(shape) + (shape->kind == LK_SHORT_CONV ? 0 : heads);
}

/* Convolution, and SiLU unless LK_SHORT_CONV, of channels [first, last): x [n_tok][channels] -> y
 * of the same shape. Updates the rows of projections in `state`. Different channels may be computed
 * by different threads. */
void lk_recurrence_conv(const struct lk_recurrence_shape *shape,
                        const struct lk_recurrence_weights *weights, float *state, const float *x,
                        int n_tok, int first, int last, float *y);

/* The recurrence of one value head. y: [n_tok][channels] of lk_recurrence_conv; decay, beta:
 * [n_tok][n_v_head]; out: [n_tok][n_v_head][d_value]. Updates the head's S in `state`. Different
 * heads may be computed by different threads. */
void lk_recurrence_head(const struct lk_recurrence_shape *shape,
                        const struct lk_recurrence_weights *weights,
                        const struct lk_kernels *kernels, float *state, int head, const float *y,
                        const float *decay, const float *beta, int n_tok, float *out);

#endif
