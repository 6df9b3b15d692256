/* RoPE for cached keys: tables, rotation of rows and of queries. */
#include "cache/rope.h"

#include <math.h>
#include <string.h>

/* basis: orthogonal polynomials over the rows of a segment, by Gram-Schmidt on powers, twice for
 * accuracy. */
static void make_polynomials(double basis[LK_MAX_FOLD][LK_SEGMENT]) {
    for (int m = 0; m < LK_MAX_FOLD; m++) {
        double *row = basis[m], norm = 0;
        for (int t = 0; t < LK_SEGMENT; t++) row[t] = pow((2.0 * t + 1) / LK_SEGMENT - 1, m);
        for (int i = 0; i < 2 * m; i++) {
            double dot = 0;
            for (int t = 0; t < LK_SEGMENT; t++) dot += row[t] * basis[i % m][t] / LK_SEGMENT;
            for (int t = 0; t < LK_SEGMENT; t++) row[t] -= dot * basis[i % m][t];
        }
        for (int t = 0; t < LK_SEGMENT; t++) norm += row[t] * row[t] / LK_SEGMENT;
        for (int t = 0; t < LK_SEGMENT; t++) row[t] /= sqrt(norm);
    }
}

static void init_fold(struct lk_rope *rope) {
    struct lk_rope_fold *fold = &rope->fold;
    double basis[LK_MAX_FOLD][LK_SEGMENT];
    make_polynomials(basis);
    for (int m = 0; m < LK_MAX_FOLD; m++)
        for (int t = 0; t < LK_SEGMENT; t++) fold->basis[m][t] = (float)basis[m][t];
    for (int n = 0; n <= LK_MAX_FOLD; n++) fold->n_fast[n] = 0;
    for (int j = 0; j < rope->n_pair; j++) {
        double rest[2][LK_SEGMENT]; /* what is not approximated yet */
        for (int t = 0; t < LK_SEGMENT; t++) {
            rest[0][t] = cos(t * rope->speed[j]);
            rest[1][t] = sin(t * rope->speed[j]);
        }
        for (int n = 0; n <= LK_MAX_FOLD; n++) {
            double error = 0;
            for (int i = 0; i < 2; i++)
                for (int t = 0; t < LK_SEGMENT; t++) error = fmax(error, fabs(rest[i][t]));
            if (!(error <= LK_FOLD_ERROR)) fold->n_fast[n] = j + 1;
            for (int i = 0; n < LK_MAX_FOLD && i < 2; i++) {
                double dot = 0;
                for (int t = 0; t < LK_SEGMENT; t++) dot += rest[i][t] * basis[n][t] / LK_SEGMENT;
                for (int t = 0; t < LK_SEGMENT; t++) rest[i][t] -= dot * basis[n][t];
                float *out = i ? fold->sine[n] : fold->cosine[n];
                out[2 * j] = (float)(rope->magnitude * dot);
                out[2 * j + 1] = i ? -out[2 * j] : out[2 * j];
            }
        }
    }
    /* basis[0] is 1 in every row */
    for (int c = 2 * rope->n_pair; c < 2 * LK_MAX_PAIR; c++) fold->cosine[0][c] = 1;
}

void lk_rope_init(struct lk_rope *rope, int n_pair, bool halves, float magnitude,
                  const double *speed) {
    memset(rope, 0, sizeof *rope);
    rope->n_pair = n_pair;
    rope->halves = halves;
    rope->magnitude = magnitude;
    for (int j = 0; j < n_pair; j++) {
        rope->speed[j] = speed[j];
        rope->step[j][0] = cos(LK_SEGMENT * speed[j]);
        rope->step[j][1] = sin(LK_SEGMENT * speed[j]);
        for (int t = 0; t < LK_SEGMENT; t++) {
            float(*out)[LK_TILE] = rope->table[t / LK_TILE][j];
            out[0][t % LK_TILE] = (float)(magnitude * cos(t * speed[j]));
            out[1][t % LK_TILE] = (float)(magnitude * sin(t * speed[j]));
        }
    }
    init_fold(rope);
}

/* Rotate the pairs of n rows by sign * speed and multiply them by `scale`. Angles advance from row
 * to row by the angle addition formulas, in double. */
static void rotate_rows(const struct lk_rope *rope, int64_t pos, int64_t n, double sign,
                        double scale, float *x, size_t stride) {
    for (int j = 0; j < rope->n_pair; j++) {
        double step = sign * rope->speed[j], angle = step * (double)pos, dc = cos(step),
               ds = sin(step);
        double c = scale * cos(angle), s = scale * sin(angle);
        float *a = x + lk_rope_first(rope, j), *b = x + lk_rope_second(rope, j);
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

void lk_rope_unrotate_angles(const struct lk_rope *rope, int64_t pos, int64_t n, float *out) {
    double scale = 1.0 / rope->magnitude;
    for (int j = 0; j < rope->n_pair; j++) {
        double step = -rope->speed[j], angle = step * (double)pos, dc = cos(step), ds = sin(step);
        double c = scale * cos(angle), s = scale * sin(angle);
        for (int64_t t = 0; t < n; t++) {
            float *pair = out + (t * rope->n_pair + j) * 2;
            pair[0] = (float)c;
            pair[1] = (float)s;
            double next = c * dc - s * ds;
            s = s * dc + c * ds;
            c = next;
        }
    }
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
    return (struct lk_rope_table){rope->n_pair, angles};
}

void lk_rope_phase_set(const struct lk_rope *rope, struct lk_rope_phase *phase, int64_t pos) {
    bool next = phase->set && pos == phase->pos + LK_SEGMENT;
    if (phase->set && pos == phase->pos) return;
    for (int j = 0; j < rope->n_pair; j++) {
        double c = next ? phase->c[j] : 0, s = next ? phase->s[j] : 0,
               angle = rope->speed[j] * (double)pos;
        phase->c[j] = next ? c * rope->step[j][0] - s * rope->step[j][1] : cos(angle);
        phase->s[j] = next ? s * rope->step[j][0] + c * rope->step[j][1] : sin(angle);
    }
    phase->pos = pos;
    phase->set = true;
}

void lk_rope_unrotate_query(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                            const float *q, int d, float *out) {
    memcpy(out, q, d * sizeof *out);
    for (int j = 0; j < rope->n_pair; j++) {
        float c = (float)phase->c[j], s = (float)phase->s[j];
        int a = lk_rope_first(rope, j), b = lk_rope_second(rope, j);
        out[a] = c * q[a] + s * q[b];
        out[b] = c * q[b] - s * q[a];
    }
}

void lk_rope_unrotate_query_pairs(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                                  const float *q, int d, float *out) {
    for (int j = 0; j < rope->n_pair; j++) {
        float c = (float)phase->c[j], s = (float)phase->s[j], a = q[lk_rope_first(rope, j)],
              b = q[lk_rope_second(rope, j)];
        out[2 * j] = c * a + s * b;
        out[2 * j + 1] = c * b - s * a;
    }
    for (int i = 2 * rope->n_pair; i < d; i++) out[i] = q[i];
}
