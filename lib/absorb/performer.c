#include "absorb/performer.h"

#include "base/splitmix64.h"

#include <math.h>
#include <string.h>

static uint64_t draw(uint64_t *state) { return lk_splitmix64(*state += lk_splitmix64_step); }

static double draw_normal(uint64_t *state) { /* Box and Muller */
    double u = (double)((draw(state) >> 11) + 1) / 9007199254740993.0,
           v = (double)(draw(state) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

void lk_performer_draw(uint64_t seed, int n_feature, int d_head, float *w) {
    uint64_t state = seed;
    for (int r = 0; r < n_feature; r++) { /* Gram and Schmidt; the length stays that of the draw */
        float *row = w + (size_t)r * d_head;
        for (int c = 0; c < d_head; c++) row[c] = (float)draw_normal(&state);
        float length = sqrtf(dot(row, row, d_head));
        for (int other = 0; other < r; other++) {
            const float *of = w + (size_t)other * d_head;
            float along = dot(row, of, d_head) / dot(of, of, d_head);
            for (int c = 0; c < d_head; c++) row[c] -= along * of[c];
        }
        float left = sqrtf(dot(row, row, d_head));
        for (int c = 0; c < d_head; c++) row[c] *= length / left;
    }
}

void lk_performer_features(const float *w, int n_feature, int d_head, float scale, const float *x,
                           float *out) {
    float root = sqrtf(scale), less = 0.5f * (scale * dot(x, x, d_head) + logf((float)n_feature));
    for (int r = 0; r < n_feature; r++)
        out[r] = expf(fminf(root * dot(w + (size_t)r * d_head, x, d_head) - less, 40));
}
