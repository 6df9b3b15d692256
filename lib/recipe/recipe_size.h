/* Sizes of levels in a recipe: SPAN, and 'keep' with its policy (grammar in recipe.h). */
#ifndef LK_RECIPE_RECIPE_SIZE_H
#define LK_RECIPE_RECIPE_SIZE_H

#include "recipe/recipe.h"
#include "recipe/recipe_scan.h"

/* A number of tokens or a percentage; the other one is 0. */
struct lk_span {
    uint32_t n_tok;
    float percent;
    char text[16]; /* "512" or "12.5%" */
};

/* Read N | N '%'. `range` is the word before it, for messages. */
lk_status lk_recipe_read_span(struct lk_scan *scan, const char *range, struct lk_span *span);

/* Read what follows the word 'keep': SPAN [ 'of' 'context' ] 'by' POLICY. Also prints the level's
 * name ("keep 512 by h2o") into name [cap]. */
lk_status lk_recipe_read_keep(struct lk_scan *scan, struct lk_limit *limit, char *name, size_t cap);

#endif
