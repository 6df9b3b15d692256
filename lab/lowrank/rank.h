/* Sharing out ranks: how many components each group of each layer keeps. */
#ifndef LK_LOWRANK_RANK_H
#define LK_LOWRANK_RANK_H

#include <stddef.h>
#include <stdint.h>

/* One group's place in the sharing. */
struct lk_rank_item {
    int32_t width;
    const float
        *error;   /* [width] what is lost with components 0 to j, as a share of the rows' power */
    double score; /* how much it matters (Fisher information) */
    int32_t rank; /* out */
};

/* share x width as a multiple of quantum, at least one quantum, at most width. */
int32_t lk_rank_round(int32_t width, double share, int32_t quantum);

/* The same share everywhere. */
void lk_rank_uniform(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* The same sum of ranks, shared out quantum by quantum where the next components lower the sum of errors most. */
void lk_rank_by_error(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* The same sum of ranks in proportion to scores (Palu, section 3.3): no less than a quantum, and what an
 * item has no room for goes to the others in the same proportion; then down to whole quanta, and those left over to the
 * largest remainders. */
void lk_rank_by_score(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* As Palu's code shares out (palu/rank_search.py): ranks in proportion, cut to whole numbers and to the width; then one
 * more for each, beginning with the smallest remainders, while any of the sum is left, which a sum that is no whole
 * number always is at the end of a round; then each to the nearest multiple of the quantum (halves to even ones), at
 * least one. The sum of ranks is not what was asked. */
void lk_rank_by_score_as_code(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

#endif
