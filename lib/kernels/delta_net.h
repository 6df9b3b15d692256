/* Linear attention with a gated delta rule (Gated DeltaNet, Yang et al. 2025, Eq. 10): a layer
 * keeps a state of constant size instead of rows.
 *
 * A token's projections, the rows of q, k and v of all heads, first go through a causal convolution
 * of each channel over n_conv tokens and SiLU. Then, for each value head with its state S
 * [d_state][d_state] (key channel, value channel), with q and k scaled to length 1:
 *
 *   S = exp(decay) S           decay <= 0
 *   S = S + k (beta (v - S^T k))^T
 *   out = S^T q / sqrt(d_state)
 *
 * Value head h has the q and k of head h mod n_k_head or, with `adjacent`, of head
 * h / (n_v_head / n_k_head).
 *
 * The layers of LFM2 are the convolution alone. They have no heads: n_k_head is 0, n_v_head 1, and
 * d_state the number of channels.
 *
 * A layer's state in memory, f32:
 *
 *   | the last n_conv - 1 rows of projections, oldest first [n_conv - 1][channels] |
 *   | S of all heads [n_v_head][d_state][d_state], unless conv_only                 |
 */
#ifndef LK_KERNELS_DELTA_NET_H
#define LK_KERNELS_DELTA_NET_H

#include <stdbool.h>
#include <stddef.h>

struct lk_kernels;

struct lk_delta_shape {
    bool conv_only;         /* a short convolution: without SiLU, S and what follows */
    int n_k_head, n_v_head; /* the second is a multiple of the first */
    int d_state;            /* channels of a head, a multiple of 16 */
    int n_conv;             /* tokens of the convolution, at least 2 */
    float norm_eps;         /* added to the squared lengths of q and k */
    bool adjacent;          /* the value heads of a key head are adjacent */
};

enum { LK_MAX_D_STATE = 256 };

/* Channels of a row of projections: q and k of all key heads, v of all value heads. */
static inline int lk_delta_channels(const struct lk_delta_shape *shape) {
    return (2 * shape->n_k_head + shape->n_v_head) * shape->d_state;
}

static inline size_t lk_delta_conv_floats(const struct lk_delta_shape *shape) {
    return (size_t)(shape->n_conv - 1) * lk_delta_channels(shape);
}

/* Floats of a layer's state. */
static inline size_t lk_delta_state_floats(const struct lk_delta_shape *shape) {
    size_t heads = (size_t)shape->n_v_head * shape->d_state * shape->d_state;
    return lk_delta_conv_floats(shape) + (shape->conv_only ? 0 : heads);
}

/* Convolution, and SiLU unless conv_only, of channels [first, last): x [n_tok][channels] -> y of
 * the same shape, with weights [channels][n_conv], the newest token's last, after the rows of
 * projections in `state`. Different channels may be computed by different threads. */
void lk_delta_conv(const struct lk_delta_shape *shape, const float *state, const float *weight,
                   const float *x, int n_tok, int first, int last, float *y);

/* Channels [first, last) of the rows of projections after x: those of state `from` and of x ->
 * state `to`, which may be the same. */
void lk_delta_conv_advance(const struct lk_delta_shape *shape, const float *from, float *to,
                           const float *x, int n_tok, int first, int last);

/* The delta rule of one value head. y: [n_tok][channels] of lk_delta_conv; decay, beta: [n_tok]
 * [n_v_head]; out: [n_tok][n_v_head][d_state]. The head's S of state `from` -> that of `to`, which
 * may be the same. Different heads may be computed by different threads. */
void lk_delta_head(const struct lk_delta_shape *shape, const struct lk_kernels *kernels,
                   const float *from, float *to, int head, const float *y, const float *decay,
                   const float *beta, int n_tok, float *out);

#endif
