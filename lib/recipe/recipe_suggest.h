/* Errors for unknown names in recipes, with what was probably meant. */
#ifndef LK_RECIPE_RECIPE_SUGGEST_H
#define LK_RECIPE_RECIPE_SUGGEST_H

#include "recipe/recipe_scan.h"

/* Return LK_E_FORMAT with a message for a recipe that is one unknown name, name[0..len): the
 * closest preset or codec, or what comes next to a cache type of llama.cpp. */
lk_status lk_recipe_fail_name(const struct lk_scan *scan, const char *name, size_t len);

/* The word of the grammar that is closest to word[0..len), NULL if none is close or if it is such a
 * word. Static. */
const char *lk_recipe_closest_word(const char *word, size_t len);

#endif
