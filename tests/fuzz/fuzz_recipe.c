/* Fuzz target: a text either gives one line of error, or it parses, and then its normalized text
 * parses to the same levels. */
#include "recipe/recipe_levels.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    text[size] = 0;

    lk_err err = {0};
    lk_recipe *recipe = NULL, *again = NULL;
    if (lk_recipe_parse(&recipe, text, &err)) {
        if (err.code == LK_OK || !err.msg[0] || strchr(err.msg, '\n')) abort();
    } else {
        struct lk_level_spec level[LK_MAX_LEVEL];
        lk_recipe_levels(recipe, (int)(size % 40), 40, level);
        if (lk_recipe_parse(&again, lk_recipe_text(recipe), &err)) abort();
        if (again->n_level != recipe->n_level ||
            memcmp(again->level, recipe->level, sizeof again->level) != 0)
            abort();
        if (strcmp(lk_recipe_text(again), lk_recipe_text(recipe)) != 0) abort();
    }
    lk_recipe_free(recipe);
    lk_recipe_free(again);
    free(text);
    return 0;
}
