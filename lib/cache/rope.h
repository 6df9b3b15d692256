/* RoPE for cached keys: keys are un-rotated before they are projected, and rotated again tile by
 * tile when they are scored.
 *
 * Pair j of a key at position p is rotated by the angle p * speed[j]. Every kind of scaling
 * (linear, YaRN, frequency divisors) only changes the speeds and one magnitude, by which rotated
 * channels are multiplied. */
#ifndef LK_CACHE_ROPE_H
#define LK_CACHE_ROPE_H

#include "kernels/kernels.h"

enum { LK_MAX_PAIR = 128 }; /* pairs of a head */

struct lk_rope {
    int n_pair;  /* channels from 2 n_pair on are not rotated */
    bool halves; /* pairs are (j, j + n_pair), not (2 j, 2 j + 1) */
    float magnitude;
    double speed[LK_MAX_PAIR];            /* [n_pair] radians per position */
    double tile_step[LK_MAX_PAIR][2];     /* cos and sin of LK_TILE * speed */
    float table[LK_MAX_PAIR][2][LK_TILE]; /* magnitude * cos and sin of t * speed, t < LK_TILE */
};

/* Initialize from the speeds. */
void lk_rope_init(struct lk_rope *rope, int n_pair, bool halves, float magnitude,
                  const double *speed);

/* The rotation within a tile, in the kernels' layout. Borrowed. */
static inline struct lk_rope_table lk_rope_tile_table(const struct lk_rope *rope) {
    return (struct lk_rope_table){rope->n_pair, rope->halves, rope->table};
}

/* Rotate, or un-rotate, n rows x of one head at positions pos, pos + 1, ..., `stride` floats
 * apart. */
void lk_rope_rotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);
void lk_rope_unrotate(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);

/* Like lk_rope_tile_table, for a tile whose row t < n <= LK_TILE is at position pos[t]. Fills
 * `angles`, which the result borrows. Every pair of every row takes a sine and a cosine, so this is
 * slow. */
struct lk_rope_table lk_rope_table_at(const struct lk_rope *rope, const int32_t *pos, int n,
                                      float angles[LK_MAX_PAIR][2][LK_TILE]);

/* The angles of all pairs at one position. Instead of rotating the keys of a tile by the tile's
 * first position, the query is rotated back by it. Start from {.set = false}. */
struct lk_rope_phase {
    int64_t pos;
    bool set;
    double c[LK_MAX_PAIR], s[LK_MAX_PAIR]; /* cos and sin of pos * speed */
};

/* Set the phase to a position. Cheap if it is the next tile's. */
void lk_rope_phase_set(const struct lk_rope *rope, struct lk_rope_phase *phase, int64_t pos);

/* out = q [d] rotated back by the phase; its length does not change. */
void lk_rope_unrotate_query(const struct lk_rope *rope, const struct lk_rope_phase *phase,
                            const float *q, int d, float *out);

#endif
