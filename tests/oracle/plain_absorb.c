/* Sums of evicted rows (LESS, Eq. 1 to 6), in double precision. */
#include "plain_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double gelu(double x) {
    return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* y [n_out] = gelu(x [n_in] w [n_in][n_out]) */
static void layer_of(const double *x, const float *w, int n_in, int n_out, double *y) {
    for (int o = 0; o < n_out; o++) {
        double sum = 0;
        for (int i = 0; i < n_in; i++) sum += x[i] * w[i * n_out + o];
        y[o] = gelu(sum);
    }
}

void plain_absorb_init(struct plain_cache *c) {
    const struct plain_model *m = c->set->model;
    if (!c->set->recipe->absorbs) return;
    c->n_feature = c->set->less[0].n_feature;
    for (int i = 0; i < m->n_layer; i++)
        c->layer[i].state = calloc((size_t)m->n_head_kv * c->n_feature * (m->d_head + 1),
                                   sizeof *c->layer[i].state);
}

void plain_absorb_row(struct plain_cache *c, int layer, int head, const double *k,
                      const double *v) {
    const struct plain_model *m = c->set->model;
    int d = m->d_head, n = c->n_feature;
    double psi[n], *state = c->layer[layer].state + (size_t)head * n * (d + 1);
    const struct plain_less *l = &c->set->less[layer];
    int which = head * l->n_psi / m->n_head_kv;
    double hidden[l->n_hidden], u[n];
    layer_of(k, l->psi_w1 + which * d * l->n_hidden, d, l->n_hidden, hidden);
    layer_of(hidden, l->psi_w2 + which * l->n_hidden * n, l->n_hidden, n, u);
    for (int r = 0; r < n; r++) u[r] *= fabs(l->psi_s1[which * n + r]);
    for (int r = 0; r < n; r++) {
        double mixed = 0;
        for (int i = 0; i < n; i++) mixed += u[i] * l->psi_w3[(which * n + i) * n + r];
        psi[r] = fabs(u[r] + mixed * l->psi_s2[which * n + r]);
    }
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < d; i++) state[r * (d + 1) + i] += psi[r] * v[i];
        state[r * (d + 1) + d] += psi[r];
    }
}

void plain_absorb_attend(const struct plain_cache *c, int layer, int head, const double *q,
                         double max, double *sum, double *out) {
    const struct plain_model *m = c->set->model;
    if (!c->layer[layer].state) return;
    int d = m->d_head, n = c->n_feature, head_kv = head * m->n_head_kv / m->n_head;
    const double *state = c->layer[layer].state + (size_t)head_kv * n * (d + 1);
    const struct plain_less *l = &c->set->less[layer];
    int which = head * l->n_phi / m->n_head;
    double phi[n], hidden[l->n_hidden], level = l->phi_level[head];
    layer_of(q, l->phi_w1 + which * d * l->n_hidden, d, l->n_hidden, hidden);
    layer_of(hidden, l->phi_w2 + which * l->n_hidden * n, l->n_hidden, n, phi);
    for (int r = 0; r < n; r++) {
        double weight = fabs(phi[r]) * exp(level - max);
        *sum += weight * state[r * (d + 1) + d];
        for (int i = 0; i < d; i++) out[i] += weight * state[r * (d + 1) + i];
    }
}
