/* RoPE for cached keys: tables, rotation of rows and of queries. */
#include "cache/rope.h"

#include <math.h>
#include <string.h>

void lk_rope_init(struct lk_rope *rope, int n_pair, bool halves, float magnitude,
                  const double *speed) {
    rope->n_pair = n_pair;
    rope->halves = halves;
    rope->magnitude = magnitude;
    for (int j = 0; j < n_pair; j++) {
        rope->speed[j] = speed[j];
        rope->tile_step[j][0] = cos(LK_TILE * speed[j]);
        rope->tile_step[j][1] = sin(LK_TILE * speed[j]);
        for (int t = 0; t < LK_TILE; t++) {
            rope->table[j][0][t] = (float)(magnitude * cos(t * speed[j]));
            rope->table[j][1][t] = (float)(magnitude * sin(t * speed[j]));
        }
    }
}

/* Rotate the pairs of n rows by sign * speed and multiply them by `scale`. Angles advance from row
 * to row by the angle addition formulas, in double. */
static void rotate_rows(const struct lk_rope *rope, int64_t pos, int64_t n, double sign,
                        double scale, float *x, size_t stride) {
    struct lk_rope_table pairs = lk_rope_tile_table(rope);
    for (int j = 0; j < rope->n_pair; j++) {
        double step = sign * rope->speed[j], angle = step * (double)pos, dc = cos(step),
               ds = sin(step);
        double c = scale * cos(angle), s = scale * sin(angle);
        float *a = x + lk_rope_first_channel(&pairs, j), *b = x + lk_rope_second_channel(&pairs, j);
        for (int64_t t = 0; t < n; t++, a += stride, b += stride) {
            float y = *a, z = *b;
            *a = (float)c * y - (float)s * z;
            *b = (float)s * y + (float)c * z;
            double next = c * dc - s * ds;
            s = s * dc + c * ds;
            c = next;
        }
    }
}

void lk_rope_rotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride) {
    rotate_rows(rope, pos, n, 1, rope->magnitude, x, stride);
}

void lk_rope_unrotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride) {
    rotate_rows(rope, pos, n, -1, 1.0 / rope->magnitude, x, stride);
}

struct lk_rope_table lk_rope_table_at(const struct lk_rope *rope, const int32_t *pos, int n,
                                      float angles[LK_MAX_PAIR][2][LK_TILE]) {
    const double turn = 6.283185307179586;
    for (int j = 0; j < rope->n_pair; j++) {
        memset(angles[j], 0, sizeof angles[j]);
        for (int t = 0; t < n; t++) {
            /* Reduced in double, the angle is exact enough for functions of floats. */
            double angle = rope->speed[j] * (double)pos[t];
            float a = (float)(angle - turn * floor(angle / turn + 0.5));
            angles[j][0][t] = rope->magnitude * cosf(a);
            angles[j][1][t] = rope->magnitude * sinf(a);
        }
    }
    return (struct lk_rope_table){rope->n_pair, rope->halves, angles};
}

void lk_rope_phase_set(const struct lk_rope *rope, struct lk_rope_phase *phase, int64_t pos) {
    bool next = phase->set && pos == phase->pos + LK_TILE;
    if (phase->set && pos == phase->pos) return;
    for (int j = 0; j < rope->n_pair; j++) {
        double c = next ? phase->c[j] : 0, s = next ? phase->s[j] : 0,
               angle = rope->speed[j] * (double)pos;
        phase->c[j] = next ? c * rope->tile_step[j][0] - s * rope->tile_step[j][1] : cos(angle);
        phase->s[j] = next ? s * rope->tile_step[j][0] + c * rope->tile_step[j][1] : sin(angle);
    }
    phase->pos = pos;
    phase->set = true;
}

void lk_rope_unrotate_query(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                            const float *q, int d, float *out) {
    struct lk_rope_table pairs = lk_rope_tile_table(rope);
    memcpy(out, q, d * sizeof *out);
    for (int j = 0; j < rope->n_pair; j++) {
        float c = (float)phase->c[j], s = (float)phase->s[j];
        int a = lk_rope_first_channel(&pairs, j), b = lk_rope_second_channel(&pairs, j);
        out[a] = c * q[a] + s * q[b];
        out[b] = c * q[b] - s * q[a];
    }
}
