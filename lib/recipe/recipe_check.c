/* Checks of a parsed recipe beyond the grammar. */
#include "recipe/recipe_check.h"

#include "recipe/recipe_levels.h"

static const char *side_name(int side) { return side == LK_K ? "K" : "V"; }

/* Levels go from the oldest to the newest: sink, body, windows, residual. */
static lk_status check_order(const struct lk_recipe *recipe, const struct lk_scan *scan,
                             const struct lk_recipe_places *at) {
    const struct lk_level_spec *body = NULL, *sink = NULL;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i], *older = i ? level - 1 : NULL;
        if (level->range == LK_SINK) {
            if (sink)
                return lk_scan_fail(scan, at->level[i], false, "there is already a sink: '%s'",
                                    sink->name);
            if (i)
                return lk_scan_fail(scan, at->level[i], false,
                                    "a sink holds the oldest tokens, so it must come first");
            if (!lk_codec_single_rows(&level->k, LK_K) || !lk_codec_single_rows(&level->v, LK_V))
                return lk_scan_fail(scan, at->level[i], false,
                                    "sink tokens arrive one at a time, but this codec needs whole "
                                    "tiles: use f16 or int8");
            sink = level;
        } else if (level->range == LK_BODY) {
            if (body) return lk_scan_fail(scan, at->level[i], false, "there is already a body");
            if (older && older != sink)
                return lk_scan_fail(scan, at->level[i], false,
                                    "levels go from the oldest to the newest: move the body before "
                                    "'%s'",
                                    older->name);
            body = level;
        }
        if (older && older->range == LK_RESIDUAL)
            return lk_scan_fail(scan, at->level[i], false,
                                "'%s' holds the newest tokens: no level can follow it",
                                older->name);
    }
    if (!body)
        return lk_scan_fail(scan, scan->len, false,
                            "the recipe has no body: add 'body: CODEC' (or 'all: CODEC' if it is "
                            "the only level)");
    return LK_OK;
}

static lk_status check_window_sum(const struct lk_recipe *recipe, const struct lk_scan *scan,
                                  const struct lk_recipe_places *at) {
    uint64_t tokens = 0;
    double percent = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        if (level->range != LK_RECENT && level->range != LK_RESIDUAL) continue;
        tokens += level->n_tok;
        percent += level->percent;
        if (tokens > LK_MAX_WINDOW)
            return lk_scan_fail(scan, at->level[i], false,
                                "all windows together hold more than %d tokens", LK_MAX_WINDOW);
        if (percent > 100.0)
            return lk_scan_fail(scan, at->level[i], false,
                                "all windows together hold more than 100%%");
    }
    return LK_OK;
}

/* check_aging for one head. */
static lk_status check_head_aging(const struct lk_level_spec *level, const struct lk_scan *scan,
                                  const struct lk_recipe_places *at, int older, size_t codec_at,
                                  const char *name, int head) {
    const struct lk_level_spec *newer = &level[older + 1];
    for (int side = LK_K; side <= LK_V; side++) {
        const struct lk_codec *from = lk_recipe_head_codec(newer, side, head),
                              *to = lk_recipe_head_codec(&level[older], side, head);
        if (to->bits > from->bits)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' stores %s in %d bits, but its rows come from '%s', which has only %d bits",
                name, side_name(side), to->bits, newer->name, from->bits);
        if (from->projection && to->projection != from->projection)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' stores %s as %s, but its rows come from '%s', which stores latents%s", name,
                side_name(side), to->projection ? "other latents" : "full rows", newer->name,
                from->projection == LK_PROJECTION_LATENT_PRE ? " before RoPE" : "");
        if (from->projection && to->share > from->share && from->share)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' stores %s at a higher rank than '%s', where its rows come from", name,
                side_name(side), newer->name);
        if (newer->range == LK_RESIDUAL && to->coding == LK_KIVI && newer->n_tok % to->group)
            return lk_scan_fail(scan, at->level[older + 1], false,
                                "'%s' is not a multiple of the kivi group of %d tokens",
                                newer->name, to->group);
    }
    return LK_OK;
}

/* Heads that an override names, and as bit LK_MAX_NAMED_HEAD - 1 all others. */
static uint64_t distinct_heads(const struct lk_level_spec *level, int n_level) {
    uint64_t heads = 0;
    for (int i = 0; i < n_level; i++)
        for (int j = 0; j < level[i].n_head_codecs; j++) heads |= level[i].head_codecs[j].heads;
    return heads | (uint64_t)1 << (LK_MAX_NAMED_HEAD - 1);
}

/* Check the codecs of level `older` of level[n_level], named `name` at offset `codec_at`, against
 * the next newer level. Aging cannot add information, so more bits or a higher rank in an older
 * level would be wasted. */
static lk_status check_aging(const struct lk_level_spec *level, int n_level,
                             const struct lk_scan *scan, const struct lk_recipe_places *at,
                             int older, size_t codec_at, const char *name) {
    if (older + 1 >= n_level || lk_limit_is_zero(&level[older].limit)) return LK_OK;
    lk_status status = LK_OK;
    uint64_t heads = distinct_heads(level + older, 2);
    for (int head = 0; !status && head < LK_MAX_NAMED_HEAD; head++)
        if (heads >> head & 1)
            status = check_head_aging(level, scan, at, older, codec_at, name, head);
    return status;
}

/* One level packs the rows of all heads of a layer in the same way, and attends to them in the same
 * domain. */
static bool fit_together(const struct lk_codec *a, const struct lk_codec *b, enum lk_side side) {
    return a->coding == b->coding && !a->projection && !b->projection && a->mean == b->mean &&
           a->group == b->group && a->added == b->added && lk_codec_same_domain(a, b) &&
           lk_codec_block_rows(a, side) == lk_codec_block_rows(b, side);
}

/* The codecs of the heads of one layer. */
static lk_status check_heads(const struct lk_level_spec *level, int n_level,
                             const struct lk_scan *scan, size_t at) {
    for (int i = 0; i < n_level; i++)
        for (int j = 0; j < level[i].n_head_codecs && !lk_limit_is_zero(&level[i].limit); j++)
            for (int side = LK_K; side <= LK_V; side++) {
                const struct lk_head_codecs *other = &level[i].head_codecs[j];
                if (fit_together(side == LK_K ? &level[i].k : &level[i].v,
                                 side == LK_K ? &other->k : &other->v, side))
                    continue;
                return lk_scan_fail(scan, at, false,
                                    "%s of some heads uses another kind of codec than the others "
                                    "in '%s': only bits and codebooks may differ",
                                    side_name(side), level[i].name);
            }
    return LK_OK;
}

/* A body with a limit replaces rows in place. */
static lk_status check_replaceable(const struct lk_scan *scan, const struct lk_limit *limit,
                                   const struct lk_codec *k, const struct lk_codec *v, size_t at) {
    if (limit->policy.kind == LK_POLICY_NONE) return LK_OK;
    for (int side = LK_K; side <= LK_V; side++)
        if (!lk_codec_can_replace(side == LK_K ? k : v, side))
            return lk_scan_fail(scan, at, false,
                                "this codec packs the %ss of several tokens together, so single "
                                "rows cannot be replaced: use another one",
                                side_name(side));
    return LK_OK;
}

/* The same for all heads of a layer. */
static lk_status check_heads_replaceable(const struct lk_scan *scan,
                                         const struct lk_level_spec *level, size_t at) {
    lk_status status = check_replaceable(scan, &level->limit, &level->k, &level->v, at);
    for (int i = 0; !status && i < level->n_head_codecs; i++)
        status = check_replaceable(scan, &level->limit, &level->head_codecs[i].k,
                                   &level->head_codecs[i].v, at);
    return status;
}

/* The same for all levels of every layer that the recipe names. Layers that are counted from the
 * end are taken for the last ones of a model with more layers than a recipe can name. */
static lk_status check_layers(const struct lk_recipe *recipe, const struct lk_scan *scan,
                              const struct lk_recipe_places *at, int body) {
    enum { N_LAYER = 2 * LK_MAX_LAYER };
    lk_status status = LK_OK;
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        const struct lk_level_spec *level = &recipe->level[o->level];
        if (o->level != body &&
            (o->k.projection || o->v.projection || level->k.projection || level->v.projection))
            return lk_scan_fail(scan, at->override[i], false,
                                "'%s' stores latents in all layers, or in none", level->name);
    }
    for (int layer = 0; !status && recipe->n_override && layer < N_LAYER; layer++) {
        struct lk_level_spec level[LK_MAX_LEVEL];
        int last = lk_recipe_last_override(recipe, layer, N_LAYER);
        if (last < 0) continue;
        if (!lk_recipe_levels(recipe, layer, N_LAYER, level))
            return lk_scan_fail(scan, at->override[last], false,
                                "the heads of layer %d have more than %d different codecs", layer,
                                LK_MAX_HEAD_CODECS + 1);
        status = check_heads(level, recipe->n_level, scan, at->override[last]);
        if (!status) status = check_heads_replaceable(scan, &level[body], at->override[last]);
        for (int i = body; !status && i < recipe->n_level; i++)
            status = check_aging(level, recipe->n_level, scan, at, i, at->override[last],
                                 i != body                      ? level[i].name
                                 : recipe->override[last].heads ? "heads"
                                                                : "layers");
    }
    return status;
}

/* The features of a recipe, and where it says so. */
struct found {
    lk_features features;
    size_t place[LK_N_FEATURE];
};

static void add_feature(struct found *found, enum lk_feature f, size_t place) {
    if (!(found->features & lk_feature_bit(f))) found->place[f] = place;
    found->features |= lk_feature_bit(f);
}

static enum lk_feature coding_feature(const struct lk_codec *codec) {
    switch ((enum lk_coding)codec->coding) {
    case LK_F16: return LK_FEATURE_F16;
    case LK_INT8: return LK_FEATURE_INT8;
    case LK_KIVI: return LK_FEATURE_KIVI;
    case LK_ROT: return LK_FEATURE_ROT;
    case LK_ASYM: return LK_FEATURE_ASYM;
    case LK_ADDED: break;
    }
    return lk_codec_row_wise(codec, LK_K) ? LK_FEATURE_ADDED_ROWS : LK_FEATURE_ADDED_BLOCKS;
}

static void add_codec(struct found *found, const struct lk_codec *codec, size_t place) {
    add_feature(found, coding_feature(codec), place);
    if (codec->projection == LK_PROJECTION_LATENT) add_feature(found, LK_FEATURE_LATENT, place);
    if (codec->projection == LK_PROJECTION_LATENT_PRE)
        add_feature(found, LK_FEATURE_LATENT_PRE, place);
}

static void add_limit(struct found *found, const struct lk_limit *limit, size_t place) {
    int kind = limit->policy.kind;
    enum lk_feature policy =
        kind ? (enum lk_feature)(LK_FEATURE_KEEPS + kind - 1) : LK_FEATURE_BODY;
    add_feature(found, lk_limit_is_zero(limit) ? LK_FEATURE_NONE : policy, place);
    if (limit->percent > 0 && !limit->of_context) add_feature(found, LK_FEATURE_PERCENT, place);
}

static struct found find_features(const struct lk_recipe *recipe,
                                  const struct lk_recipe_places *at) {
    struct found found = {0};
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        size_t place = at->level[i];
        if (level->range == LK_SINK)
            add_feature(&found, level->shift ? LK_FEATURE_SHIFT : LK_FEATURE_SINK, place);
        if (level->range == LK_BODY) add_limit(&found, &level->limit, place);
        if (level->range == LK_RECENT) add_feature(&found, LK_FEATURE_WINDOW, place);
        if (level->range == LK_RESIDUAL) add_feature(&found, LK_FEATURE_RESIDUAL, place);
        if (lk_limit_is_zero(&level->limit)) continue;
        add_codec(&found, &level->k, place);
        add_codec(&found, &level->v, place);
    }
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        bool limit = o->limit.policy.kind != LK_POLICY_NONE;
        if (recipe->level[o->level].range == LK_BODY)
            add_feature(&found,
                        o->heads ? LK_FEATURE_HEADS
                        : limit  ? LK_FEATURE_LAYERS_LIMIT
                                 : LK_FEATURE_LAYERS,
                        at->override[i]);
        if (limit) add_limit(&found, &o->limit, at->override[i]);
        if (lk_limit_is_zero(&o->limit)) continue;
        add_codec(&found, &o->k, at->override[i]);
        add_codec(&found, &o->v, at->override[i]);
    }
    if (recipe->absorbs) add_feature(&found, LK_FEATURE_LESS, at->absorb);
    if (recipe->eager) add_feature(&found, LK_FEATURE_EAGER, at->eager);
    if (recipe->read > 0) add_feature(&found, LK_FEATURE_READ, at->read);
    return found;
}

lk_features lk_recipe_features(const struct lk_recipe *recipe) {
    static const struct lk_recipe_places nowhere;
    return find_features(recipe, &nowhere).features;
}

/* The table of combinations. */
static lk_status check_combinations(const struct lk_recipe *recipe, const struct lk_scan *scan,
                                    const struct lk_recipe_places *at) {
    struct found found = find_features(recipe, at);
    const struct lk_combination_rule *rule = lk_combination_check(found.features);
    if (!rule) return LK_OK;
    return lk_scan_fail(scan, found.place[rule->b], false, "%s", rule->reason);
}

/* What rows are evicted from must be able to replace them, and needs a newer level. */
static lk_status check_eviction(const struct lk_recipe *recipe, const struct lk_scan *scan,
                                const struct lk_recipe_places *at, int body) {
    const struct lk_level_spec *level = &recipe->level[body];
    lk_status status =
        check_replaceable(scan, &level->limit, &level->k, &level->v, at->level[body]);
    bool none = lk_limit_is_zero(&level->limit);
    size_t none_at = at->level[body];
    for (int i = 0; i < recipe->n_override && !status; i++) {
        const struct lk_override *o = &recipe->override[i];
        if (o->level != body) continue;
        if (!none && lk_limit_is_zero(&o->limit)) none_at = at->override[i];
        none |= lk_limit_is_zero(&o->limit);
    }
    if (!status && none && body + 1 == recipe->n_level)
        return lk_scan_fail(scan, none_at, false,
                            "a body of 'none' needs a window for the newest tokens");
    return status;
}

lk_status lk_recipe_check(const struct lk_recipe *recipe, const struct lk_scan *scan,
                          const struct lk_recipe_places *at) {
    lk_status status = check_order(recipe, scan, at);
    if (status) return status;
    int body = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        if (level->range == LK_BODY)
            body = i;
        else if (at->sole_level)
            return lk_scan_fail(scan, at->level[i], false,
                                "%s leaves no tokens for '%s': use 'body:' instead", at->sole_level,
                                level->name);
    }
    status = check_window_sum(recipe, scan, at);
    if (!status) status = check_combinations(recipe, scan, at);
    if (!status) status = check_eviction(recipe, scan, at, body);
    for (int i = body; i < recipe->n_level && !status; i++)
        status = check_aging(recipe->level, recipe->n_level, scan, at, i, at->level[i],
                             recipe->level[i].name);
    return status ? status : check_layers(recipe, scan, at, body);
}
