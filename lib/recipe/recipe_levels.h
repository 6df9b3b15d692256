/* Queries on a parsed recipe. lowkey.h declares the public ones: lk_recipe_evicts and
 * lk_recipe_get_level. */
#ifndef LK_RECIPE_RECIPE_LEVELS_H
#define LK_RECIPE_RECIPE_LEVELS_H

#include "recipe/recipe.h"

/* Copy the levels as they apply to layer `layer` of `n_layer` to out[n_level], with overrides. If
 * several overrides name a level in the layer, the last one applies. */
void lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out);

/* Index of the last override that names this layer; -1: none does. */
int lk_recipe_last_override(const struct lk_recipe *recipe, int layer, int n_layer);

#endif
