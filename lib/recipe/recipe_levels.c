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

bool lk_recipe_overrides_layer(const struct lk_recipe *recipe, int layer, int n_layer) {
    for (int i = 0; i < recipe->n_override; i++)
        if (names_layer(&recipe->override[i], layer, n_layer)) return true;
    return false;
}

void lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out) {
    memcpy(out, recipe->level, (size_t)recipe->n_level * sizeof *out);
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        if (!names_layer(o, layer, n_layer)) continue;
        for (int j = 0; j < recipe->n_level; j++) {
            if (out[j].range != LK_BODY) continue;
            out[j].k = o->k;
            out[j].v = o->v;
            if (o->limit.policy.kind != LK_POLICY_NONE) out[j].limit = o->limit;
        }
    }
}

static void print_layer_range(const struct lk_override *o, char *buf, size_t cap) {
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
    const struct lk_override *override = level ? NULL : &recipe->override[i - n_level];
    if (level)
        snprintf(out->name, sizeof out->name, "%s", level->name);
    else
        print_layer_range(override, out->name, sizeof out->name);
    if (lk_limit_is_zero(level ? &level->limit : &override->limit)) {
        snprintf(out->k_codec, sizeof out->k_codec, "none");
        snprintf(out->v_codec, sizeof out->v_codec, "none");
        return true;
    }
    lk_codec_print(level ? &level->k : &override->k, LK_K, out->k_codec, sizeof out->k_codec);
    lk_codec_print(level ? &level->v : &override->v, LK_V, out->v_codec, sizeof out->v_codec);
    return true;
}
