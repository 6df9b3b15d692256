/* Checks of a parsed recipe beyond the grammar. */
#include "recipe/recipe_check.h"

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

/* Check the codecs of level `older`, named `name` at offset `codec_at`, against the next newer
 * level. Aging cannot add information, so more bits or a higher rank in an older level would be
 * wasted. */
static lk_status check_aging(const struct lk_recipe *recipe, const struct lk_scan *scan,
                             const struct lk_recipe_places *at, int older,
                             const struct lk_codec codec[2], size_t codec_at, const char *name) {
    if (older + 1 >= recipe->n_level) return LK_OK;
    const struct lk_level_spec *newer = &recipe->level[older + 1];
    for (int side = LK_K; side <= LK_V; side++) {
        const struct lk_codec *from = side == LK_K ? &newer->k : &newer->v, *to = &codec[side];
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

/* A body with a limit replaces rows in place. */
static lk_status check_replaceable(const struct lk_scan *scan, const struct lk_limit *limit,
                                   const struct lk_codec *k, const struct lk_codec *v, size_t at) {
    if (limit->policy.kind == LK_POLICY_NONE) return LK_OK;
    for (int side = LK_K; side <= LK_V; side++)
        if (!lk_codec_can_replace(side == LK_K ? k : v, side))
            return lk_scan_fail(scan, at, false,
                                "this codec packs the %ss of several tokens together, so single "
                                "rows cannot be replaced: use f16, int8 or rot",
                                side_name(side));
    return LK_OK;
}

static lk_status check_shift(const struct lk_recipe *recipe, const struct lk_scan *scan,
                             const struct lk_recipe_places *at, const struct lk_level_spec *body) {
    for (int i = 0; i < recipe->n_level; i++) {
        if (!recipe->level[i].shift) continue;
        if (!lk_limit_is_zero(&body->limit) || recipe->n_override > 0)
            return lk_scan_fail(
                scan, at->level[i], false,
                "'shift' needs 'body: none': other rows would lose their distances");
        if (recipe->level[i].k.projection)
            return lk_scan_fail(scan, at->level[i], false,
                                "'shift' needs full rows of K: use f16 or int8 instead of latents");
    }
    return LK_OK;
}

/* A body evicts K and V of the same rows, so both must reach it at the same time. */
static lk_status check_eviction(const struct lk_recipe *recipe, const struct lk_scan *scan,
                                const struct lk_recipe_places *at, int body) {
    const struct lk_level_spec *level = &recipe->level[body];
    if (!lk_recipe_evicts(recipe)) return LK_OK;
    for (int i = body + 1; i < recipe->n_level; i++)
        if (recipe->level[i].range == LK_RESIDUAL)
            return lk_scan_fail(scan, at->level[i], false,
                                "rows are evicted, but a residual passes on K and V at different "
                                "times: use 'window' instead");
    lk_status status =
        check_replaceable(scan, &level->limit, &level->k, &level->v, at->level[body]);
    for (int i = 0; i < recipe->n_override && !status; i++) {
        const struct lk_override *o = &recipe->override[i];
        bool has_limit = o->limit.policy.kind != LK_POLICY_NONE;
        status = check_replaceable(scan, has_limit ? &o->limit : &level->limit, &o->k, &o->v,
                                   at->override[i]);
    }
    if (status || !lk_limit_is_zero(&level->limit)) return status;
    if (body + 1 == recipe->n_level)
        return lk_scan_fail(scan, at->level[body], false,
                            "a body of 'none' needs a window for the newest tokens");
    if (recipe->n_override > 0)
        return lk_scan_fail(scan, at->override[0], false,
                            "'layers' sets codecs of the body, but the body is 'none'");
    return LK_OK;
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
    if (!status) status = check_shift(recipe, scan, at, &recipe->level[body]);
    if (!status) status = check_eviction(recipe, scan, at, body);
    for (int i = body; i < recipe->n_level && !status; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        const struct lk_codec codec[2] = {level->k, level->v};
        if (lk_limit_is_zero(&level->limit)) continue;
        status = check_aging(recipe, scan, at, i, codec, at->level[i], level->name);
    }
    for (int i = 0; i < recipe->n_override && !status; i++) {
        const struct lk_codec codec[2] = {recipe->override[i].k, recipe->override[i].v};
        status = check_aging(recipe, scan, at, body, codec, at->override[i], "layers");
    }
    if (!status && recipe->eager && lk_recipe_evicts(recipe))
        return lk_scan_fail(scan, at->eager, false,
                            "'eager' encodes rows before attention, but a policy can choose among "
                            "rows only after it: remove 'eager'");
    if (!status && recipe->absorbs && !lk_recipe_evicts(recipe))
        return lk_scan_fail(scan, at->absorb, false,
                            "'absorb' needs evicted rows: add 'keep N by POLICY' or 'body: none'");
    return status;
}
