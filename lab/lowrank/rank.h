/* Distribution of ranks: how many components each group of each layer keeps. */
#ifndef LK_LOWRANK_RANK_H
#define LK_LOWRANK_RANK_H

#include "lowrank/fisher.h"
#include "lowrank/layer_basis.h"

#include <stddef.h>
#include <stdint.h>

/* One group that gets a rank. */
struct lk_rank_item {
    int32_t width;
    /* [width] error with components 0 to j, as a share of the rows' power */
    const float *error;
    double score; /* importance (Fisher information) */
    int32_t rank; /* out */
};

/* share x width as a multiple of quantum, at least one quantum, at most width. */
int32_t lk_rank_round(int32_t width, double share, int32_t quantum);

/* The same share everywhere. */
void lk_rank_uniform(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* The same sum of ranks as lk_rank_uniform, assigned quantum by quantum to the item whose next
 * components lower the sum of errors most. */
void lk_rank_by_error(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* The same sum of ranks in proportion to scores (Palu, section 3.3). Every item gets at least one
 * quantum. If an item is full, the rest goes to the others in proportion. Ranks are then rounded
 * down to whole quanta, and the quanta left over go to the largest remainders. */
void lk_rank_by_score(struct lk_rank_item *item, size_t n, double share, int32_t quantum);

/* Fill the ranks of layer[side] [n_layer], NULL for a side without bases. fisher: the gradients, if
 * the plan needs them. */
lk_status lk_assign_ranks(struct lk_layer_basis *const layer[LK_N_BASIS],
                          const struct lk_basis_source *source, const struct lk_fisher *fisher,
                          lk_err *err);

#endif
