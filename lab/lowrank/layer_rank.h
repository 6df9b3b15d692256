/* Assigns ranks to the groups of all layers' bases. */
#ifndef LK_LOWRANK_LAYER_RANK_H
#define LK_LOWRANK_LAYER_RANK_H

#include "lowrank/fisher.h"
#include "lowrank/layer_basis.h"

/* Fill the ranks of layer[side] [n_layer], NULL for a side without bases. fisher: the gradients, if
 * the plan needs them. */
lk_status lk_assign_ranks(struct lk_layer_basis *const layer[LK_N_BASIS],
                          const struct lk_basis_source *source, const struct lk_fisher *fisher,
                          lk_err *err);

#endif
