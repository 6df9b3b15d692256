/* RoPE for cached keys: keys are un-rotated before they are projected, and rotated again tile by
 * tile when they are scored.
 *
 * Pair j of a key at position p is rotated by the angle p * speed[j]. Every kind of scaling
 * (linear, YaRN, frequency divisors) only changes the speeds and one magnitude, by which rotated
 * channels are multiplied. */
#ifndef LK_CACHE_ROPE_H
#define LK_CACHE_ROPE_H

#include "kernels/kernels.h"

enum {
    LK_MAX_PAIR = 256, /* pairs of a head */
    LK_SEGMENT_TILES = 4,
    LK_SEGMENT = LK_SEGMENT_TILES * LK_TILE, /* rows of a segment, for which tables are made */
    LK_MAX_FOLD = 4                          /* functions for slow pairs */
};

/* Slow pairs. Within a segment, the cosine and the sine of a slow pair's angle are almost
 * polynomials of low degree:
 *
 *   magnitude * cos(t * speed[j])  ~  sum over m < n of cosine[m][2 j] * basis[m][t]
 *   magnitude * sin(t * speed[j])  ~  sum over m < n of sine[m][2 j] * basis[m][t]
 *
 * basis[m] is the polynomial of degree m that is orthogonal to those of lower degree, with a mean
 * square of 1, so the coefficients are those of the least squares for every n. With n functions,
 * the pairs from n_fast[n] on have an error of at most LK_FOLD_ERROR * magnitude in every row.
 * Channels are in the order of pairs (lk_rope_channel): cosine[m][2 j + 1] is the same number, and
 * sine[m][2 j + 1] its negative. Channels that are not rotated have a cosine of 1. */
#define LK_FOLD_ERROR 2e-3
struct lk_rope_fold {
    int n_fast[LK_MAX_FOLD + 1];
    float basis[LK_MAX_FOLD][LK_SEGMENT];
    float cosine[LK_MAX_FOLD][2 * LK_MAX_PAIR], sine[LK_MAX_FOLD][2 * LK_MAX_PAIR];
};

struct lk_rope {
    int n_pair;  /* channels from 2 n_pair on are not rotated */
    bool halves; /* pairs are (j, j + n_pair), not (2 j, 2 j + 1) */
    float magnitude;
    double speed[LK_MAX_PAIR];   /* [n_pair] radians per position */
    double step[LK_MAX_PAIR][2]; /* cos and sin of LK_SEGMENT * speed */
    /* magnitude * cos and sin of t * speed for the rows of a segment, tile after tile */
    float table[LK_SEGMENT_TILES][LK_MAX_PAIR][2][LK_TILE];
    struct lk_rope_fold fold;
};

/* Initialize from the speeds. */
void lk_rope_init(struct lk_rope *rope, int n_pair, bool halves, float magnitude,
                  const double *speed);

/* Rotate, or un-rotate, n rows x of one head at positions pos, pos + 1, ..., `stride` floats
 * apart. */
void lk_rope_rotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);
void lk_rope_unrotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);

/* What lk_rope_unrotate multiplies by: out [n][n_pair][2], the cosine and the sine c, s of a row's
 * pair, which becomes (c a - s b, s a + c b). */
void lk_rope_unrotate_angles(const struct lk_rope *rope, int64_t pos, int64_t n, float *out);

/* The rotation of a tile whose row t < n <= LK_TILE is at position pos[t]. Fills `angles`, which
 * the result borrows. Every pair of every row takes a sine and a cosine, so this is slow. */
struct lk_rope_table lk_rope_table_at(const struct lk_rope *rope, const int32_t *pos, int n,
                                      float angles[LK_MAX_PAIR][2][LK_TILE]);

/* The angles of all pairs at one position. Instead of rotating the keys of a segment by the
 * segment's first position, the query is rotated back by it. Start from {.set = false}. */
struct lk_rope_phase {
    int64_t pos;
    bool set;
    double c[LK_MAX_PAIR], s[LK_MAX_PAIR]; /* cos and sin of pos * speed */
};

/* Set the phase to a position. Cheap if it is the next segment's. */
void lk_rope_phase_set(const struct lk_rope *rope, struct lk_rope_phase *phase, int64_t pos);

/* The channels of pair j. */
static inline int lk_rope_first(const struct lk_rope *rope, int j) {
    return rope->halves ? j : 2 * j;
}
static inline int lk_rope_second(const struct lk_rope *rope, int j) {
    return rope->halves ? j + rope->n_pair : 2 * j + 1;
}

/* The order of pairs: both channels of a pair next to each other, then channels that are not
 * rotated. Returns the channel in place i. rope: NULL for no rotation. */
static inline int lk_rope_channel(const struct lk_rope *rope, int i) {
    if (!rope || i >= 2 * rope->n_pair) return i;
    return i % 2 ? lk_rope_second(rope, i / 2) : lk_rope_first(rope, i / 2);
}

/* The place of a channel in that order: the inverse of lk_rope_channel. */
static inline int lk_rope_place(const struct lk_rope *rope, int channel) {
    if (!rope || !rope->halves || channel >= 2 * rope->n_pair) return channel;
    return channel < rope->n_pair ? 2 * channel : 2 * (channel - rope->n_pair) + 1;
}

/* out = q [d] rotated back by the phase; its length does not change. _pairs: out is in the order
 * of pairs. */
void lk_rope_unrotate_query(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                            const float *q, int d, float *out);
void lk_rope_unrotate_query_pairs(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                                  const float *q, int d, float *out);

#endif
