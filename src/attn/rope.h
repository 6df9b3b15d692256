/* Rotary positions, as far as attention needs them: a query can be turned as if it stood elsewhere.
 *
 * A rotation by position p is linear and commutes with others, so a query made for position p, turned by
 * -e, is the query for position p - e. StreamingLLM (Xiao et al. 2024, section 3.2) counts positions within
 * the cache; rows of the window keep their distances then, and only the sinks come nearer by the tokens
 * that were let go: the query is turned for them, and no row is ever touched. */
#ifndef LK_ATTN_ROPE_H
#define LK_ATTN_ROPE_H

#include "codec/codec.h"

struct lk_rope {
    int    n_rot;     /* channels that are rotated, in pairs; 0: none          */
    bool   halves;   /* pairs are (i, i + n_rot / 2), else (2 i, 2 i + 1)     */
    double freq[LK_MAX_D_HEAD / 2]; /* [n_rot / 2] radians per position       */
};

/* q [d_head], made for some position, as if made `distance` positions earlier; in place. */
void lk_rope_turn_back(const struct lk_rope *rope, float *q, int64_t distance);

#endif
