/* What the grammar cannot say: the order, number and sizes of levels. */
#ifndef LK_RECIPE_RECIPE_CHECK_H
#define LK_RECIPE_RECIPE_CHECK_H

#include "recipe/recipe.h"
#include "recipe/recipe_scan.h"

enum { LK_MAX_SINK = 1024, LK_MAX_WINDOW = 1000000, LK_MAX_LAYER = 1024 };

/* level_at, override_at: where each was read, for errors. `alone`: how the body was written when that
 * makes it the only level ("'all'"), or NULL. */
lk_status lk_recipe_check(const struct lk_recipe *recipe, const struct lk_scan *scan,
                          const size_t *level_at, const size_t *override_at, const char *alone);

/* recipe_keep.c: what follows the word 'keep' in a range. name: as printed ("keep 512 by h2o"). */
lk_status lk_recipe_read_keep(struct lk_scan *scan, struct lk_limit *limit, char *name, size_t cap);

#endif
