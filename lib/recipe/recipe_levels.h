/* Queries on a parsed recipe. lowkey.h declares the public ones: lk_recipe_evicts and
 * lk_recipe_get_level. */
#ifndef LK_RECIPE_RECIPE_LEVELS_H
#define LK_RECIPE_RECIPE_LEVELS_H

#include "recipe/recipe.h"

/* Copy the levels as they apply to layer `layer` of `n_layer` to out[n_level], with overrides. If
 * several overrides name a level and head in the layer, the last one applies. False if the heads of
 * a level have more than LK_MAX_HEAD_CODECS other codecs, which no parsed recipe has. */
bool lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out);

/* Index of the last override that names this layer; -1: none does. */
int lk_recipe_last_override(const struct lk_recipe *recipe, int layer, int n_layer);

/* The codec of a KV head's rows in a level. */
const struct lk_codec *lk_recipe_head_codec(const struct lk_level_spec *level, enum lk_side side,
                                            int head);

/* Does a level keep rows by replay? */
bool lk_recipe_replays(const struct lk_recipe *recipe);

#endif
