/* Queries on a parsed recipe: the levels of a layer, eviction, and a printable description. */
#include "recipe/recipe_levels.h"

#include <stdio.h>
#include <string.h>

bool lk_recipe_evicts(const struct lk_recipe *recipe) {
    for (int i = 0; i < recipe->n_level; i++)
        if (recipe->level[i].limit.policy.kind != LK_POLICY_NONE) return true;
    for (int i = 0; i < recipe->n_override; i++)
        if (recipe->override[i].limit.policy.kind != LK_POLICY_NONE) return true;
    return false;
}

static bool names_layer(const struct lk_override *o, int layer, int n_layer) {
    int first = o->first < 0 ? o->first + n_layer : o->first;
    int last = o->last < 0 ? o->last + n_layer : o->last;
    return layer >= first && layer <= last;
}

int lk_recipe_last_override(const struct lk_recipe *recipe, int layer, int n_layer) {
    int i = recipe->n_override - 1;
    while (i >= 0 && !names_layer(&recipe->override[i], layer, n_layer)) i--;
    return i;
}

void lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out) {
    memcpy(out, recipe->level, (size_t)recipe->n_level * sizeof *out);
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        if (!names_layer(o, layer, n_layer)) continue;
        struct lk_level_spec *level = &out[o->level];
        level->k = o->k;
        level->v = o->v;
        if (o->limit.policy.kind != LK_POLICY_NONE) level->limit = o->limit;
    }
}

/* "layers 0-3", and the first word of the level's name unless it is the body. */
static void print_override_name(const lk_recipe *recipe, const struct lk_override *o, char *buf,
                                size_t cap) {
    const struct lk_level_spec *level = &recipe->level[o->level];
    const char *name = level->range == LK_BODY ? "" : level->name, *space = *name ? " " : "";
    int n = (int)strcspn(name, " ");
    if (o->first < 0)
        snprintf(buf, cap, "layers last %d%s%.*s", -o->first, space, n, name);
    else if (o->first == o->last)
        snprintf(buf, cap, "layers %d%s%.*s", o->first, space, n, name);
    else
        snprintf(buf, cap, "layers %d-%d%s%.*s", o->first, o->last, space, n, name);
}

bool lk_recipe_get_level(const lk_recipe *recipe, size_t i, lk_recipe_level *out) {
    size_t n_level = (size_t)recipe->n_level, n_override = (size_t)recipe->n_override;
    if (i >= n_level + n_override) return false;
    const struct lk_level_spec *level = i < n_level ? &recipe->level[i] : NULL;
    const struct lk_override *override = level ? NULL : &recipe->override[i - n_level];
    if (level)
        snprintf(out->name, sizeof out->name, "%s", level->name);
    else
        print_override_name(recipe, override, out->name, sizeof out->name);
    if (lk_limit_is_zero(level ? &level->limit : &override->limit)) {
        snprintf(out->k_codec, sizeof out->k_codec, "none");
        snprintf(out->v_codec, sizeof out->v_codec, "none");
        return true;
    }
    lk_codec_print(level ? &level->k : &override->k, LK_K, out->k_codec, sizeof out->k_codec);
    lk_codec_print(level ? &level->v : &override->v, LK_V, out->v_codec, sizeof out->v_codec);
    return true;
}
