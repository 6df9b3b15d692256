/* A parsed recipe shown to people. */
#include "recipe/recipe.h"

#include <stdio.h>

static void print_layers(const struct lk_override *o, char *buf, size_t cap) {
    if (o->first < 0)
        snprintf(buf, cap, "layers last %d", -o->first);
    else if (o->first == o->last)
        snprintf(buf, cap, "layers %d", o->first);
    else
        snprintf(buf, cap, "layers %d-%d", o->first, o->last);
}

bool lk_recipe_get_level(const lk_recipe *recipe, size_t i, lk_recipe_level *out) {
    size_t n_level = (size_t)recipe->n_level, n_override = (size_t)recipe->n_override;
    if (i >= n_level + n_override) return false;
    const struct lk_level_spec *level = i < n_level ? &recipe->level[i] : NULL;
    const struct lk_override *over = level ? NULL : &recipe->override[i - n_level];
    lk_recipe_level got;
    if (level)
        snprintf(got.name, sizeof got.name, "%s", level->name);
    else
        print_layers(over, got.name, sizeof got.name);
    lk_codec_print(level ? &level->k : &over->k, LK_K, got.k_codec, sizeof got.k_codec);
    lk_codec_print(level ? &level->v : &over->v, LK_V, got.v_codec, sizeof got.v_codec);
    if (level && lk_limit_none(&level->limit)) {
        snprintf(got.k_codec, sizeof got.k_codec, "none");
        snprintf(got.v_codec, sizeof got.v_codec, "none");
    }
    *out = got;
    return true;
}
