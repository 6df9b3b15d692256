/* Checks of a parsed recipe beyond the grammar: order, number and sizes of levels. */
#ifndef LK_RECIPE_RECIPE_CHECK_H
#define LK_RECIPE_RECIPE_CHECK_H

#include "recipe/combinations.h"
#include "recipe/recipe.h"
#include "recipe/recipe_scan.h"

/* Offsets of the parts in the text, for error messages. */
struct lk_recipe_places {
    size_t level[LK_MAX_LEVEL], override[LK_MAX_OVERRIDE], absorb, eager, read;
    const char
        *sole_level; /* how the text says that the body is the only level ("'all'"), or NULL */
};

/* The features of a parsed recipe. */
lk_features lk_recipe_features(const struct lk_recipe *recipe);

/* LK_E_FORMAT with a message if the recipe makes no sense. */
lk_status lk_recipe_check(const struct lk_recipe *recipe, const struct lk_scan *scan,
                          const struct lk_recipe_places *at);

#endif
