/* Computations of lib/ for tests in C++. */
#include "support_emulated.h"

#include "absorb/less.h"
#include "cache/project.h"
#include "cache/rope.h"

#include <math.h>
#include <stdlib.h>

void project_on_cpu(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                    const float *x, int x_stride, int n, float *z, int z_stride) {
    struct lk_basis_head of = {
        .basis = basis, .group = group, .head = head, .d_head = d_head, .rank = rank};
    lk_project_add(&of, x, (size_t)x_stride, n, z, (size_t)z_stride);
}

void unrotate_on_cpu(int n_pair, bool halves, int64_t pos, int n, float *x, int stride,
                     float *cos_sin) {
    struct lk_rope *rope = calloc(1, sizeof *rope);
    double speed[LK_MAX_PAIR];
    for (int j = 0; j < n_pair; j++) speed[j] = pow(10000, -(double)j / n_pair);
    lk_rope_init(rope, n_pair, halves, 1.25f, speed);
    /* An un-rotated pair (1, 0) is its cosine and sine. */
    float *unit = calloc((size_t)n * 2 * n_pair, sizeof *unit);
    for (int i = 0; i < n * n_pair; i++)
        unit[i / n_pair * 2 * n_pair + lk_rope_first(rope, i % n_pair)] = 1;
    lk_rope_unrotate(rope, pos, n, unit, (size_t)2 * n_pair);
    for (int i = 0; i < n * n_pair; i++) {
        const float *row = unit + i / n_pair * 2 * n_pair;
        cos_sin[2 * i] = row[lk_rope_first(rope, i % n_pair)];
        cos_sin[2 * i + 1] = row[lk_rope_second(rope, i % n_pair)];
    }
    free(unit);
    lk_rope_unrotate(rope, pos, n, x, (size_t)stride);
    free(rope);
}

static struct lk_less_shape shape_of(const struct lk_device_less *less) {
    return (struct lk_less_shape){.n_head = less->n_head,
                                  .n_head_kv = less->n_head_kv,
                                  .d_head = less->d_head,
                                  .n_hidden = less->n_hidden,
                                  .n_feature = less->n_feature,
                                  .n_phi = less->n_phi,
                                  .n_psi = less->n_psi};
}

static struct lk_less_maps maps_of(const struct lk_device_less *less) {
    return (struct lk_less_maps){.phi_w1 = (const uint16_t *)(uintptr_t)less->phi_w1,
                                 .phi_w2 = (const uint16_t *)(uintptr_t)less->phi_w2,
                                 .phi_bias = (const float *)(uintptr_t)less->phi_bias,
                                 .psi_w1 = (const uint16_t *)(uintptr_t)less->psi_w1,
                                 .psi_w2 = (const uint16_t *)(uintptr_t)less->psi_w2,
                                 .psi_w3 = (const float *)(uintptr_t)less->psi_w3,
                                 .psi_s1 = (const float *)(uintptr_t)less->psi_s1,
                                 .psi_s2 = (const float *)(uintptr_t)less->psi_s2,
                                 .kernels = &lk_kernels_reference};
}

void less_psi_on_cpu(const struct lk_device_less *less, int head, const float *k, float *psi) {
    struct lk_less_shape shape = shape_of(less);
    struct lk_less_maps maps = maps_of(less);
    float work[LK_LESS_MAX_HIDDEN];
    lk_less_psi(&shape, &maps, head, k, psi, work);
}

void less_absorb_on_cpu(const struct lk_device_less *less, float *state, const float *psi,
                        const float *v) {
    struct lk_less_shape shape = shape_of(less);
    lk_less_absorb(&shape, state, psi, v);
}

void less_read_on_cpu(const struct lk_device_less *less, const float *state, int head,
                      const float *q, float *mean, float *log_sum) {
    struct lk_less_shape shape = shape_of(less);
    struct lk_less_maps maps = maps_of(less);
    float work[LK_LESS_MAX_HIDDEN], phi[LK_LESS_MAX_FEATURE];
    lk_less_phi(&shape, &maps, head, q, phi, work);
    lk_less_read(&shape, state, phi, maps.phi_bias[head], mean, log_sum);
}
