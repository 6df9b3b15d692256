/* LESS feature maps and states. The equations are in the header. */
#include "absorb/less.h"

#include <math.h>
#include <string.h>

/* gelu(gelu(x W1) W2) with network number `which`. */
static void two_layer_mlp(const struct lk_less_shape *shape, const struct lk_kernels *kernels,
                          const uint16_t *w1, const uint16_t *w2, int which, const float *x,
                          float *out, float *work) {
    int d = shape->d_head, hidden = shape->n_hidden, n = shape->n_feature;
    kernels->gelu_layer(x, w1 + (size_t)which * d * hidden, d, hidden, work);
    kernels->gelu_layer(work, w2 + (size_t)which * hidden * n, hidden, n, out);
}

void lk_less_phi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work) {
    two_layer_mlp(shape, maps->kernels, maps->phi_w1, maps->phi_w2,
                  head * shape->n_phi / shape->n_head, x, out, work);
    for (int r = 0; r < shape->n_feature; r++) out[r] = fabsf(out[r]);
}

void lk_less_psi(const struct lk_less_shape *shape, const struct lk_less_maps *maps, int head,
                 const float *x, float *out, float *work) {
    int n = shape->n_feature, which = head * shape->n_psi / shape->n_head_kv;
    const float *s1 = maps->psi_s1 + (size_t)which * n, *s2 = maps->psi_s2 + (size_t)which * n;
    const float *w3 = maps->psi_w3 + (size_t)which * n * n;
    float u[LK_LESS_MAX_FEATURE];
    two_layer_mlp(shape, maps->kernels, maps->psi_w1, maps->psi_w2, which, x, u, work);
    for (int r = 0; r < n; r++) u[r] *= fabsf(s1[r]);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < n; i++, w3 += n)
        for (int r = 0; r < n; r++) out[r] += u[i] * w3[r];
    for (int r = 0; r < n; r++) out[r] = fabsf(u[r] + out[r] * s2[r]);
}

size_t lk_less_state_floats(const struct lk_less_shape *shape) {
    return (size_t)shape->n_feature * (shape->d_head + 1);
}

void lk_less_absorb(const struct lk_less_shape *shape, float *state, const float *psi,
                    const float *v) {
    int d = shape->d_head;
    for (int r = 0; r < shape->n_feature; r++, state += d + 1) {
        for (int c = 0; c < d; c++) state[c] += psi[r] * v[c];
        state[d] += psi[r];
    }
}

void lk_less_read(const struct lk_less_shape *shape, const float *state, const float *phi,
                  float bias, float *out, float *log_sum) {
    int d = shape->d_head;
    float sum = 0;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int r = 0; r < shape->n_feature; r++, state += d + 1) {
        for (int c = 0; c < d; c++) out[c] += phi[r] * state[c];
        sum += phi[r] * state[d];
    }
    *log_sum = sum > 0 ? logf(sum) + bias : -INFINITY;
    for (int c = 0; c < d; c++) out[c] = sum > 0 ? out[c] / sum : 0;
}

void lk_less_mix(int d_head, float *mean, float *log_sum, const float *state_mean,
                 float state_log_sum) {
    if (state_log_sum == -INFINITY) return;
    /* The state's share of all weights; 1 if there are no rows. */
    float share = 1.0f / (1.0f + expf(*log_sum - state_log_sum));
    for (int c = 0; c < d_head; c++) mean[c] += share * (state_mean[c] - mean[c]);
    *log_sum = fmaxf(*log_sum, state_log_sum) + log1pf(expf(-fabsf(*log_sum - state_log_sum)));
}

size_t lk_less_map_bytes(const struct lk_less_shape *shape) {
    size_t mlp = (size_t)shape->n_hidden * (shape->d_head + shape->n_feature);
    size_t n = (size_t)shape->n_feature;
    return (shape->n_phi + shape->n_psi) * mlp * sizeof(uint16_t) +
           (shape->n_head + shape->n_psi * n * (n + 2)) * sizeof(float);
}

size_t lk_less_state_bytes(const struct lk_less_shape *shape) {
    return (size_t)shape->n_head_kv * lk_less_state_floats(shape) * sizeof(float);
}
