/* Linear attention with a gated delta rule. */
#include "kernels/delta_net.h"

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

/* Row t of the inputs of a call. The first n_conv - 1 are in the state. */
static const float *input_row(const struct lk_delta_shape *s, const float *state, const float *x,
                              int t) {
    size_t channels = (size_t)lk_delta_channels(s);
    int old = s->n_conv - 1;
    return t < old ? state + (size_t)t * channels : x + (size_t)(t - old) * channels;
}

void lk_delta_conv(const struct lk_delta_shape *s, const float *state, const float *weight,
                   const float *x, int n_tok, int first, int last, float *y) {
    enum { BLOCK = 32 };
    size_t channels = (size_t)lk_delta_channels(s);
    for (int at = first; at < last; at += BLOCK) {
        int n = last - at < BLOCK ? last - at : BLOCK;
        for (int t = 0; t < n_tok; t++) {
            float sum[BLOCK] = {0}, *out = y + (size_t)t * channels + at;
            for (int i = 0; i < s->n_conv; i++) {
                const float *row = input_row(s, state, x, t + i) + at;
                const float *w = weight + (size_t)at * s->n_conv + i;
                for (int c = 0; c < n; c++) sum[c] += w[(size_t)c * s->n_conv] * row[c];
            }
            for (int c = 0; c < n; c++)
                out[c] = s->conv_only ? sum[c] : sum[c] / (1 + expf(-sum[c]));
        }
    }
}

void lk_delta_conv_advance(const struct lk_delta_shape *s, const float *from, float *to,
                           const float *x, int n_tok, int first, int last) {
    size_t channels = (size_t)lk_delta_channels(s);
    for (int i = 0; i < s->n_conv - 1; i++) /* from a later row */
        memcpy(to + (size_t)i * channels + first, input_row(s, from, x, n_tok + i) + first,
               (size_t)(last - first) * sizeof *to);
}

/* x scaled to length `length`. */
static void scale_to(const struct lk_delta_shape *s, const float *x, float length, float *out) {
    float sum = s->norm_eps;
    for (int i = 0; i < s->d_state; i++) sum += x[i] * x[i];
    float factor = length / sqrtf(sum);
    for (int i = 0; i < s->d_state; i++) out[i] = factor * x[i];
}

void lk_delta_head(const struct lk_delta_shape *s, const struct lk_kernels *kernels,
                   const float *from, float *to, int head, const float *y, const float *decay,
                   const float *beta, int n_tok, float *out) {
    int d = s->d_state, n_head = s->n_v_head;
    int k_head = s->adjacent ? head / (n_head / s->n_k_head) : head % s->n_k_head;
    size_t at = lk_delta_conv_floats(s) + (size_t)head * d * d;
    float q[LK_MAX_D_STATE], k[LK_MAX_D_STATE];
    for (int t = 0; t < n_tok; t++) {
        const float *row = y + (size_t)t * lk_delta_channels(s);
        scale_to(s, row + (size_t)k_head * d, 1 / sqrtf((float)d), q);
        scale_to(s, row + (size_t)(s->n_k_head + k_head) * d, 1, k);
        kernels->delta_step((t > 0 ? to : from) + at, to + at, d, q, k,
                            row + (size_t)(2 * s->n_k_head + head) * d,
                            expf(decay[(size_t)t * n_head + head]), beta[(size_t)t * n_head + head],
                            out + ((size_t)t * n_head + head) * d);
    }
}
