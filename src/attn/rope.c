#include "attn/rope.h"

#include <math.h>

void lk_rope_turn_back(const struct lk_rope *rope, float *q, int64_t distance) {
    int half = rope->n_rot / 2;
    for (int i = 0; i < half; i++) {
        float *x = q + (rope->halves ? i : 2 * i), *y = q + (rope->halves ? i + half : 2 * i + 1);
        double angle = -rope->freq[i] * (double)distance;
        float c = (float)cos(angle), s = (float)sin(angle), was = *x;
        *x = was * c - *y * s;
        *y = was * s + *y * c;
    }
}
