/* Orthogonal random features. */
#include "absorb/performer.h"

#include "base/splitmix64.h"

#include <math.h>
#include <string.h>

static uint64_t next_u64(uint64_t *state) { return lk_splitmix64(*state += lk_splitmix64_step); }

/* Box-Muller transform. */
static double next_normal(uint64_t *state) {
    double u = (double)((next_u64(state) >> 11) + 1) / 9007199254740993.0;
    double v = (double)(next_u64(state) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

void lk_performer_draw(uint64_t seed, int n_feature, int d_head, float *w) {
    uint64_t state = seed;
    for (int r = 0; r < n_feature; r++) { /* Gram-Schmidt; the length of each draw is kept */
        float *row = w + (size_t)r * d_head;
        for (int c = 0; c < d_head; c++) row[c] = (float)next_normal(&state);
        float length = sqrtf(dot(row, row, d_head));
        for (int other = 0; other < r; other++) {
            const float *prev = w + (size_t)other * d_head;
            float along = dot(row, prev, d_head) / dot(prev, prev, d_head);
            for (int c = 0; c < d_head; c++) row[c] -= along * prev[c];
        }
        float rest = sqrtf(dot(row, row, d_head));
        for (int c = 0; c < d_head; c++) row[c] *= length / rest;
    }
}

void lk_performer_features(const float *w, int n_feature, int d_head, float scale, const float *x,
                           float *out) {
    float root = sqrtf(scale), norm = 0.5f * (scale * dot(x, x, d_head) + logf((float)n_feature));
    for (int r = 0; r < n_feature; r++)
        out[r] = expf(fminf(root * dot(w + (size_t)r * d_head, x, d_head) - norm, 40));
}
