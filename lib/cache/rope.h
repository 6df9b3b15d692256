/* RoPE as the cache needs it: keys un-rotated before they are projected, and rotated again in tiles.
 *
 * Pair j of a key at position p is turned by the angle p * speed[j]; all kinds of scaling (linear, YaRN,
 * divisors of frequencies) change speeds and one magnitude, by which what is rotated is multiplied. */
#ifndef LK_CACHE_ROPE_H
#define LK_CACHE_ROPE_H

#include "kernels/kernels.h"

enum { LK_MAX_PAIR = 128 }; /* of a head */

struct lk_rope {
    int n_pair;  /* channels from 2 n_pair on are not rotated */
    bool halves; /* pairs are (j, j + n_pair), not (2 j, 2 j + 1) */
    float magnitude;
    double speed[LK_MAX_PAIR];           /* [n_pair] */
    double tile[LK_MAX_PAIR][2];         /* cos and sin of LK_TILE * speed */
    float turn[LK_MAX_PAIR][2][LK_TILE]; /* magnitude times cos and sin of t * speed, t < LK_TILE */
};

/* Make a rope of its speeds. */
void lk_rope_init(struct lk_rope *rope, int n_pair, bool halves, float magnitude,
                  const double *speed);

/* The rotation within a tile, as kernels take it. Borrowed. */
static inline struct lk_rope_table lk_rope_tile_table(const struct lk_rope *rope) {
    return (struct lk_rope_table){rope->n_pair, rope->halves, rope->turn};
}

/* Undo, or do, the rotation of n rows x of one head at positions pos, pos + 1, ..., `stride` floats apart. */
void lk_rope_undo(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);
void lk_rope_redo(const struct lk_rope *rope, int64_t pos, int64_t n, float *x, size_t stride);

/* Where a tile begins, for queries to be seen from there: what turns them back by its position. */
struct lk_rope_view {
    int64_t pos;
    bool set;
    double c[LK_MAX_PAIR], s[LK_MAX_PAIR];
};

/* Move the view to a position; from tile to tile that is cheap. */
void lk_rope_view_move(const struct lk_rope *rope, struct lk_rope_view *view, int64_t pos);

/* A query [d] turned back by the view's position, its length unchanged. */
void lk_rope_view_apply(const struct lk_rope *rope, const struct lk_rope_view *view, const float *q,
                        int d, float *out);

#endif
