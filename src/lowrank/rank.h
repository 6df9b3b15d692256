/* Sharing out ranks: how many components each group of each layer keeps. */
#ifndef LK_LOWRANK_RANK_H
#define LK_LOWRANK_RANK_H

#include <stddef.h>
#include <stdint.h>

/* One group's place in the sharing. */
struct lk_rank_item {
    int32_t      width;
    const float *error; /* [width] what is lost with components 0 to j, as a share of the rows' power */
    int32_t      rank;  /* out                                                                        */
};

/* share x width as a multiple of quantum, at least one quantum, at most width. */
int32_t lk_rank_round(int32_t width, double share, int32_t quantum);

/* The same share everywhere. */
void lk_rank_uniform(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* The same sum of ranks, shared out quantum by quantum where the next components lower the sum of errors most. */
void lk_rank_by_error(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

#endif
