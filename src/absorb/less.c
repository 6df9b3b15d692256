#include "absorb/less.h"

#include "absorb/performer.h"

#include <math.h>
#include <string.h>

float lk_less_gelu(float x) {
    const float twice = 1.5957691216057308f; /* 2 sqrt(2/pi) */
    return x / (1.0f + expf(-twice * (x + 0.044715f * x * x * x)));
}

/* n columns of y = x W, for x [n_in] and W [n_in][n_out]; n is a constant where this is inlined, so that the sums
 * stay in registers. */
static inline void some_columns(const float *x, const float *w, int n_in, int n_out, float *y, int n) {
    float sum[32] = {0};
    for (int i = 0; i < n_in; i++, w += n_out)
        for (int o = 0; o < n; o++) sum[o] += x[i] * w[o];
    memcpy(y, sum, (size_t)n * sizeof *y);
}

/* y = x W. */
static void multiply(const float *x, const float *w, int n_in, int n_out, float *y) {
    int o = 0;
    for (; o + 32 <= n_out; o += 32) some_columns(x, w + o, n_in, n_out, y + o, 32);
    for (; o + 8 <= n_out; o += 8) some_columns(x, w + o, n_in, n_out, y + o, 8);
    for (; o < n_out; o++) some_columns(x, w + o, n_in, n_out, y + o, 1);
}

static void gelu_row(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = lk_less_gelu(x[i]);
}

/* gelu(gelu(x W1) W2) of the network `which`. */
static void two_layers(const struct lk_less_shape *shape, const float *w1, const float *w2, int which, const float *x, float *out, float *work) {
    int d = shape->d_head, hidden = shape->n_hidden, n = shape->n_feature;
    multiply(x, w1 + (size_t)which * d * hidden, d, hidden, work);
    gelu_row(work, hidden);
    multiply(work, w2 + (size_t)which * hidden * n, hidden, n, out);
    gelu_row(out, n);
}

void lk_less_phi(const struct lk_less_shape *shape, const struct lk_less_kernels *kernels, int head, const float *x, float *out, float *work) {
    if (kernels->random) {
        lk_performer_features(kernels->random, shape->n_feature, shape->d_head, kernels->scale, x, out);
        return;
    }
    two_layers(shape, kernels->phi_w1, kernels->phi_w2, head * shape->n_phi / shape->n_head, x, out, work);
    for (int r = 0; r < shape->n_feature; r++) out[r] = fabsf(out[r]);
}

void lk_less_psi(const struct lk_less_shape *shape, const struct lk_less_kernels *kernels, int head, const float *x, float *out, float *work) {
    if (kernels->random) {
        lk_performer_features(kernels->random, shape->n_feature, shape->d_head, kernels->scale, x, out);
        return;
    }
    int n = shape->n_feature, which = head * shape->n_psi / shape->n_head_kv;
    const float *s1 = kernels->psi_s1 + (size_t)which * n, *s2 = kernels->psi_s2 + (size_t)which * n;
    float u[LK_LESS_MAX_FEATURE];
    two_layers(shape, kernels->psi_w1, kernels->psi_w2, which, x, u, work);
    for (int r = 0; r < n; r++) u[r] *= fabsf(s1[r]);
    multiply(u, kernels->psi_w3 + (size_t)which * n * n, n, n, out);
    for (int r = 0; r < n; r++) out[r] = fabsf(u[r] + out[r] * s2[r]);
}

size_t lk_less_state_floats(const struct lk_less_shape *shape) { return (size_t)shape->n_feature * (shape->d_head + 1); }

void lk_less_absorb(const struct lk_less_shape *shape, float *state, const float *psi, const float *v) {
    int d = shape->d_head;
    for (int r = 0; r < shape->n_feature; r++, state += d + 1) {
        for (int c = 0; c < d; c++) state[c] += psi[r] * v[c];
        state[d] += psi[r];
    }
}

void lk_less_read(const struct lk_less_shape *shape, const float *state, const float *phi, float level, float *out, float *log_sum) {
    int d = shape->d_head;
    float sum = 0;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int r = 0; r < shape->n_feature; r++, state += d + 1) {
        for (int c = 0; c < d; c++) out[c] += phi[r] * state[c];
        sum += phi[r] * state[d];
    }
    *log_sum = sum > 0 ? logf(sum) + level : -INFINITY;
    for (int c = 0; c < d; c++) out[c] = sum > 0 ? out[c] / sum : 0;
}

void lk_less_mix(int d_head, float *mean, float *log_sum, const float *state_mean, float state_log_sum) {
    if (state_log_sum == -INFINITY) return;
    float share = 1.0f / (1.0f + expf(*log_sum - state_log_sum)); /* of the state; 1 where nothing else is there */
    for (int c = 0; c < d_head; c++) mean[c] += share * (state_mean[c] - mean[c]);
    *log_sum = fmaxf(*log_sum, state_log_sum) + log1pf(expf(-fabsf(*log_sum - state_log_sum)));
}

size_t lk_less_kernel_bytes(const struct lk_less_shape *shape) {
    size_t two = (size_t)shape->n_hidden * (shape->d_head + shape->n_feature), n = (size_t)shape->n_feature;
    return (shape->n_phi * two + shape->n_head + shape->n_psi * (two + n * (n + 2))) * sizeof(float);
}

size_t lk_less_state_bytes(const struct lk_less_shape *shape) {
    return (size_t)shape->n_head_kv * lk_less_state_floats(shape) * sizeof(float);
}
