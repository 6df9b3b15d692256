/* Weights of K and V that are replaced by factors: from the bases of a sidecar to lib/model, and
 * which recipes a model with such weights allows. */
#ifndef LK_ENGINE_FACTORS_H
#define LK_ENGINE_FACTORS_H

#include "engine/model.h"

/* The factors [n_layer] of K or V in all layers. A group has the rank that the sidecar recommends
 * for it, rounded up to a multiple of 8. Layers without a basis keep their weights. *out is owned:
 * lk_factors_free; it borrows from the sidecar. LK_E_ARG if the sidecar has no basis for any layer,
 * LK_E_NOMEM. */
lk_status lk_factors_new(struct lk_factor **out, const struct lk_sidecar *sidecar,
                         const struct lk_hparams *hp, enum lk_side side, struct lk_ledger *ledger,
                         lk_err *err);
void lk_factors_free(struct lk_factor *factor, const struct lk_hparams *hp,
                     struct lk_ledger *ledger);

/* Which weights of the model are replaced: LK_FACTORS_K and LK_FACTORS_V, or 0. */
unsigned lk_factors_sides(const struct lk_model *model);

/* A model with factors computes no rows. LK_E_ARG if the recipe is not eager, or if a level of the
 * cache stores rows, latents of another basis, or more components than the factors have. */
lk_status lk_factors_check(const struct lk_model *model, const struct lk_recipe *recipe,
                           const struct lk_cache *cache, lk_err *err);

#endif
