/* Context shift: drops the oldest tokens after the first ones, so that a long text goes on.
 *
 *     before    | n_keep | n_drop .............. | rest .......... |
 *     after     | n_keep | rest .......... |                          new rows follow
 *
 * Attention knows the positions of tokens by their distance only, so no row is modified. Indices
 * and positions of the rest stay, and go on growing. The rows that are kept move up: their indices
 * grow by n_drop (cache/level.h), and queries are rotated back by as much before they are
 * multiplied with these rows, which RoPE allows exactly. All distances are then those among the
 * held tokens.
 *
 * In layers with full attention, whole blocks of the body are dropped, so n_keep and n_drop are
 * rounded: they are the same for K and V of all layers. Layers with a sliding window drop rows from
 * the front, and keep none: what they hold is the end of the text. */
#ifndef LK_CACHE_SHIFT_ROWS_H
#define LK_CACHE_SHIFT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

struct lk_cache;

enum { LK_SHIFT_POSITIONS = 1 << 20 }; /* up to here RoPE's angles are exact enough as floats */

struct lk_shift {
    int64_t n_keep, n_drop; /* tokens */
};

/* Round a shift of a cache without policies: keep at least n_keep tokens, and drop n_drop tokens or
 * a few more, if the body has so many. After an earlier shift, keep what that one kept. False if
 * the body has no whole block to drop. */
bool lk_cache_plan_shift(const struct lk_cache *cache, struct lk_shift *shift);

/* Make a shift that was planned. Blocks that other caches share stay there. */
void lk_cache_shift(struct lk_cache *cache, const struct lk_shift *shift);

#endif
