/* Convolutions, the gated delta rule, and state space models. */
#include "kernels/recurrence.h"

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

/* Row t of the inputs of a call. The first n_conv - 1 are in the state. */
static const float *input_row(const struct lk_recurrence_shape *s, const float *state,
                              const float *x, int t) {
    size_t channels = (size_t)lk_recurrence_channels(s);
    int old = s->n_conv - 1;
    return t < old ? state + (size_t)t * channels : x + (size_t)(t - old) * channels;
}

void lk_recurrence_conv(const struct lk_recurrence_shape *s,
                        const struct lk_recurrence_weights *weights, float *state, const float *x,
                        int n_tok, int first, int last, float *y) {
    enum { BLOCK = 32 };
    size_t channels = (size_t)lk_recurrence_channels(s);
    for (int at = first; at < last; at += BLOCK) {
        int n = last - at < BLOCK ? last - at : BLOCK;
        for (int t = 0; t < n_tok; t++) {
            float sum[BLOCK] = {0}, *out = y + (size_t)t * channels + at;
            for (int i = 0; i < s->n_conv; i++) {
                const float *row = input_row(s, state, x, t + i) + at;
                const float *w = weights->conv + (size_t)at * s->n_conv + i;
                for (int c = 0; c < n; c++) sum[c] += w[(size_t)c * s->n_conv] * row[c];
            }
            for (int c = 0; weights->conv_b && c < n; c++) sum[c] += weights->conv_b[at + c];
            for (int c = 0; c < n; c++)
                out[c] = s->kind == LK_SHORT_CONV ? sum[c] : sum[c] / (1 + expf(-sum[c]));
        }
        for (int i = 0; i < s->n_conv - 1; i++) /* from a later row */
            memmove(state + (size_t)i * channels + at, input_row(s, state, x, n_tok + i) + at,
                    (size_t)n * sizeof *state);
    }
}

/* x [d_key] scaled to length `length`. */
static void scale_to(const struct lk_recurrence_shape *s, const float *x, float length,
                     float *out) {
    float sum = s->norm_eps;
    for (int i = 0; i < s->d_key; i++) sum += x[i] * x[i];
    float factor = length / sqrtf(sum);
    for (int i = 0; i < s->d_key; i++) out[i] = factor * x[i];
}

void lk_recurrence_head(const struct lk_recurrence_shape *s,
                        const struct lk_recurrence_weights *weights,
                        const struct lk_kernels *kernels, float *state, int head, const float *y,
                        const float *decay, const float *beta, int n_tok, float *out) {
    int n_head = s->n_v_head, d = s->d_value;
    int k_head = s->adjacent ? head / (n_head / s->n_k_head) : head % s->n_k_head;
    float *matrix = state + lk_recurrence_conv_floats(s) + (size_t)head * s->d_key * d;
    float unit_q[LK_MAX_D_STATE], unit_k[LK_MAX_D_STATE];
    for (int t = 0; t < n_tok; t++) {
        const float *row = y + (size_t)t * lk_recurrence_channels(s);
        size_t i = (size_t)t * n_head + head, n_keys = (size_t)s->n_k_head * s->d_key;
        if (s->kind == LK_STATE_SPACE) {
            const float *v = row + (size_t)head * d,
                        *k = row + (size_t)n_head * d + (size_t)k_head * s->d_key;
            kernels->scan_step(matrix, s->d_key, d, k + n_keys, k, v, expf(decay[i]), beta[i],
                               out + i * d);
            for (int c = 0; c < d; c++) out[i * d + c] += weights->skip[head] * v[c];
        } else {
            const float *q = row + (size_t)k_head * d, *v = row + 2 * n_keys + (size_t)head * d;
            scale_to(s, q, 1 / sqrtf((float)d), unit_q);
            scale_to(s, q + n_keys, 1, unit_k);
            kernels->delta_step(matrix, d, unit_q, unit_k, v, expf(decay[i]), beta[i], out + i * d);
        }
    }
}
