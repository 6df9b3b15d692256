/* Random latent bases. */
#include "support_basis.h"

#include <math.h>
#include <stdlib.h>

/* Make the rows of q [n_row][n] orthonormal (Gram-Schmidt, twice for accuracy). */
static void orthonormalize(float *q, int n_row, int n) {
    for (int i = 0; i < n_row; i++) {
        float *row = q + (size_t)i * n;
        for (int pass = 0; pass < 2; pass++)
            for (int j = 0; j < i; j++) {
                double dot = 0;
                for (int c = 0; c < n; c++) dot += (double)row[c] * q[(size_t)j * n + c];
                for (int c = 0; c < n; c++) row[c] -= (float)dot * q[(size_t)j * n + c];
            }
        double norm = 0;
        for (int c = 0; c < n; c++) norm += (double)row[c] * row[c];
        for (int c = 0; c < n; c++) row[c] /= (float)sqrt(norm);
    }
}

struct lk_basis random_basis(struct random *r, int n_group, int width, int n_comp, int rank,
                             bool skew, bool mean) {
    size_t n = (size_t)n_comp * width, all = n * n_group;
    float *down = malloc(all * sizeof *down), *up = skew ? malloc(all * sizeof *up) : down;
    float *center = mean ? malloc((size_t)n_group * width * sizeof *center) : NULL;
    int32_t *ranks = malloc(n_group * sizeof *ranks);
    for (int g = 0; g < n_group; g++) {
        float *q = down + g * n;
        for (size_t i = 0; i < n; i++) q[i] = random_gauss(r);
        orthonormalize(q, n_comp, width);
        for (int j = 0; skew && j < n_comp; j++) {
            float stretch = 0.5f + random_uniform(r);
            for (int c = 0; c < width; c++) {
                up[g * n + (size_t)j * width + c] = q[(size_t)j * width + c] / stretch;
                q[(size_t)j * width + c] *= stretch;
            }
        }
        ranks[g] = rank;
    }
    for (int i = 0; mean && i < n_group * width; i++) center[i] = random_gauss(r);
    return (struct lk_basis){.n_group = n_group,
                             .width = width,
                             .n_comp = n_comp,
                             .down = {.f32 = down},
                             .up = {.f32 = up},
                             .mean = center,
                             .rank = ranks};
}

void free_basis(struct lk_basis *basis) {
    if (basis->up.any != basis->down.any) free((void *)basis->up.any);
    free((void *)basis->down.any);
    free((void *)basis->mean);
    free((void *)basis->rank);
    *basis = (struct lk_basis){0};
}
