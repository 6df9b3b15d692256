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

bool lk_recipe_replays(const struct lk_recipe *recipe) {
    bool any = false;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_limit *limit = &recipe->level[i].limit;
        any |= limit->policy.kind == LK_POLICY_REPLAY && !lk_limit_is_zero(limit);
    }
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_limit *limit = &recipe->override[i].limit;
        any |= limit->policy.kind == LK_POLICY_REPLAY && !lk_limit_is_zero(limit);
    }
    return any;
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

/* Some heads of a level get other codecs. */
static bool set_head_codecs(struct lk_level_spec *level, const struct lk_override *o) {
    int n = 0;
    for (int i = 0; i < level->n_head_codecs; i++) {
        level->head_codecs[n] = level->head_codecs[i];
        level->head_codecs[n].heads &= ~o->heads;
        n += level->head_codecs[n].heads != 0;
    }
    level->n_head_codecs = n;
    for (int i = 0; i < n; i++) {
        struct lk_head_codecs *same = &level->head_codecs[i];
        if (memcmp(&same->k, &o->k, sizeof o->k) != 0 || memcmp(&same->v, &o->v, sizeof o->v) != 0)
            continue;
        same->heads |= o->heads;
        return true;
    }
    if (n == LK_MAX_HEAD_CODECS) return false;
    level->head_codecs[level->n_head_codecs++] = (struct lk_head_codecs){o->heads, o->k, o->v};
    return true;
}

bool lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out) {
    bool fits = true;
    memcpy(out, recipe->level, (size_t)recipe->n_level * sizeof *out);
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        if (!names_layer(o, layer, n_layer)) continue;
        struct lk_level_spec *level = &out[o->level];
        if (o->heads) {
            fits &= set_head_codecs(level, o);
            continue;
        }
        level->k = o->k;
        level->v = o->v;
        level->n_head_codecs = 0;
        if (o->limit.policy.kind != LK_POLICY_NONE) level->limit = o->limit;
    }
    return fits;
}

const struct lk_codec *lk_recipe_head_codec(const struct lk_level_spec *level, enum lk_side side,
                                            int head) {
    for (int i = 0; i < level->n_head_codecs; i++) {
        const struct lk_head_codecs *other = &level->head_codecs[i];
        if (other->heads >> head & 1) return side == LK_K ? &other->k : &other->v;
    }
    return side == LK_K ? &level->k : &level->v;
}

/* "heads 0-2, 5". */
static void print_heads(uint64_t heads, char *buf, size_t cap) {
    size_t n = 0;
    const char *before = "heads ";
    buf[0] = 0;
    for (int i = 0; i < LK_MAX_NAMED_HEAD && n < cap; i++) {
        int last = i;
        if (!(heads >> i & 1)) continue;
        while (last + 1 < LK_MAX_NAMED_HEAD && heads >> (last + 1) & 1) last++;
        n += (size_t)snprintf(buf + n, cap - n, last > i ? "%s%d-%d" : "%s%d", before, i, last);
        before = ", ";
        i = last;
    }
}

/* "layers 0-3 heads 1", and the first word of the level's name unless it is the body. */
static void print_override_name(const lk_recipe *recipe, const struct lk_override *o, char *buf,
                                size_t cap) {
    const struct lk_level_spec *level = &recipe->level[o->level];
    const char *name = level->range == LK_BODY ? "" : level->name;
    char layers[32] = "", heads[40];
    if (o->first < 0)
        snprintf(layers, sizeof layers, "layers last %d", -o->first);
    else if (o->first == o->last)
        snprintf(layers, sizeof layers, "layers %d", o->first);
    else if (o->last >= 0)
        snprintf(layers, sizeof layers, "layers %d-%d", o->first, o->last);
    print_heads(o->heads, heads, sizeof heads);
    snprintf(buf, cap, "%s%s%s%s%.*s", layers, *layers && *heads ? " " : "", heads,
             *name ? " " : "", (int)strcspn(name, " "), name);
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
