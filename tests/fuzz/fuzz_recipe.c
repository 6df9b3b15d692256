/* Fuzz target: a text either gives one line of error, or it parses, and then its normalized text
 * parses to the same recipe. */
#include "recipe/recipe_levels.h"
#include "support_baselines.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Fields are compared one by one, because the bytes between them have no defined value. */
static bool same_codec(const struct lk_codec *a, const struct lk_codec *b) {
    return a->coding == b->coding && a->bits == b->bits && a->group == b->group &&
           a->mean == b->mean && a->sigma == b->sigma && a->lloyd == b->lloyd &&
           a->trellis == b->trellis && a->hadamard == b->hadamard && a->added == b->added &&
           a->projection == b->projection && a->share == b->share;
}

static bool same_limit(const struct lk_limit *a, const struct lk_limit *b) {
    return a->policy.kind == b->policy.kind && a->policy.mean == b->policy.mean &&
           a->policy.per_head == b->policy.per_head && a->policy.seed == b->policy.seed &&
           a->n_tok == b->n_tok && a->percent == b->percent && a->of_context == b->of_context;
}

static bool same_level(const struct lk_level_spec *a, const struct lk_level_spec *b) {
    return a->range == b->range && strcmp(a->name, b->name) == 0 && a->n_tok == b->n_tok &&
           a->percent == b->percent && a->shift == b->shift && same_limit(&a->limit, &b->limit) &&
           same_codec(&a->k, &b->k) && same_codec(&a->v, &b->v);
}

static bool same_override(const struct lk_override *a, const struct lk_override *b) {
    return a->first == b->first && a->last == b->last && a->level == b->level &&
           same_limit(&a->limit, &b->limit) && same_codec(&a->k, &b->k) && same_codec(&a->v, &b->v);
}

static bool same_recipe(const lk_recipe *a, const lk_recipe *b) {
    if (a->n_level != b->n_level || a->n_override != b->n_override || a->absorbs != b->absorbs ||
        a->eager != b->eager || a->read != b->read)
        return false;
    for (int i = 0; i < a->n_level; i++)
        if (!same_level(&a->level[i], &b->level[i])) return false;
    for (int i = 0; i < a->n_override; i++)
        if (!same_override(&a->override[i], &b->override[i])) return false;
    return strcmp(lk_recipe_text(a), lk_recipe_text(b)) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    register_baselines();
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
        if (!same_recipe(again, recipe)) abort();
    }
    lk_recipe_free(recipe);
    lk_recipe_free(again);
    free(text);
    return 0;
}
