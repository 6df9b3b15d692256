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
        rope->tile[j][0] = cos(LK_TILE * speed[j]);
        rope->tile[j][1] = sin(LK_TILE * speed[j]);
        for (int t = 0; t < LK_TILE; t++) {
            rope->turn[j][0][t] = (float)(magnitude * cos(t * speed[j]));
            rope->turn[j][1][t] = (float)(magnitude * sin(t * speed[j]));
        }
    }
}

/* Turn pairs of n rows by sign * speed, and multiply by `length`. Angles go on from row to row by addition
 * theorems, in double. */
static void turn_rows(const struct lk_rope *rope, int64_t pos, int64_t n, double sign,
                      double length, float *x, size_t stride) {
    struct lk_rope_table pairs = lk_rope_tile_table(rope);
    for (int j = 0; j < rope->n_pair; j++) {
        double step = sign * rope->speed[j], angle = step * (double)pos, dc = cos(step),
               ds = sin(step);
        double c = length * cos(angle), s = length * sin(angle);
        float *a = x + lk_turns_first(&pairs, j), *b = x + lk_turns_second(&pairs, j);
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

void lk_rope_undo(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride) {
    turn_rows(rope, pos, n, -1, 1.0 / rope->magnitude, x, stride);
}

void lk_rope_redo(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride) {
    turn_rows(rope, pos, n, 1, rope->magnitude, x, stride);
}

void lk_rope_view_move(const struct lk_rope *rope, struct lk_rope_view *view, int64_t pos) {
    bool next = view->set && pos == view->pos + LK_TILE;
    if (view->set && pos == view->pos) return;
    for (int j = 0; j < rope->n_pair; j++) {
        double c = next ? view->c[j] : 0, s = next ? view->s[j] : 0,
               angle = rope->speed[j] * (double)pos;
        view->c[j] = next ? c * rope->tile[j][0] - s * rope->tile[j][1] : cos(angle);
        view->s[j] = next ? s * rope->tile[j][0] + c * rope->tile[j][1] : sin(angle);
    }
    view->pos = pos;
    view->set = true;
}

void lk_rope_view_apply(const struct lk_rope *rope, const struct lk_rope_view *view, const float *q,
                        int d, float *out) {
    struct lk_rope_table pairs = lk_rope_tile_table(rope);
    memcpy(out, q, d * sizeof *out);
    for (int j = 0; j < rope->n_pair; j++) {
        float c = (float)view->c[j], s = (float)view->s[j];
        int a = lk_turns_first(&pairs, j), b = lk_turns_second(&pairs, j);
        out[a] = c * q[a] + s * q[b];
        out[b] = c * q[b] - s * q[a];
    }
}
