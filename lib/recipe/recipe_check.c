#include "recipe/recipe_check.h"

static const char *side_name(int side) { return side == LK_K ? "K" : "V"; }

/* Levels go from the oldest to the newest: sink, body, windows, residual. */
static lk_status check_order(const struct lk_recipe *recipe, const struct lk_scan *scan,
                             const size_t *at) {
    const struct lk_level_spec *body = NULL, *sink = NULL;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i], *before = i ? level - 1 : NULL;
        if (level->range == LK_SINK) {
            if (sink)
                return lk_scan_fail(scan, at[i], false, "there is a sink already: '%s'",
                                    sink->name);
            if (i)
                return lk_scan_fail(scan, at[i], false,
                                    "the sink holds the oldest tokens and comes first");
            if (!lk_codec_single_rows(&level->k, LK_K) || !lk_codec_single_rows(&level->v, LK_V))
                return lk_scan_fail(
                    scan, at[i], false,
                    "sinks arrive one by one, and this codec takes whole tiles: use f16 or int8");
            sink = level;
        } else if (level->range == LK_BODY) {
            if (body) return lk_scan_fail(scan, at[i], false, "there is a body already");
            if (before && before != sink)
                return lk_scan_fail(
                    scan, at[i], false,
                    "levels go from the oldest to the newest: the body comes before '%s'",
                    before->name);
            body = level;
        }
        if (before && before->range == LK_RESIDUAL)
            return lk_scan_fail(scan, at[i], false,
                                "'%s' holds the newest tokens: no level can follow it",
                                before->name);
    }
    if (!body)
        return lk_scan_fail(scan, scan->len, false,
                            "expected one more part: a body (or 'all' where it is the only level)");
    return LK_OK;
}

static lk_status check_sums(const struct lk_recipe *recipe, const struct lk_scan *scan,
                            const size_t *at) {
    uint64_t tokens = 0;
    double percent = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        if (level->range != LK_RECENT && level->range != LK_RESIDUAL) continue;
        tokens += level->n_tok;
        percent += level->percent;
        if (tokens > LK_MAX_WINDOW)
            return lk_scan_fail(scan, at[i], false, "the windows together hold more than %d tokens",
                                LK_MAX_WINDOW);
        if (percent > 100.0)
            return lk_scan_fail(scan, at[i], false, "the windows together hold more than 100%%");
    }
    return LK_OK;
}

/* A row that ages keeps at most what it had, so more bits in an older level would be wasted. */
static lk_status check_ageing(const struct lk_recipe *recipe, const struct lk_scan *scan,
                              const size_t *at, int older, const struct lk_codec codec[2],
                              size_t codec_at, const char *name) {
    if (older + 1 >= recipe->n_level) return LK_OK;
    const struct lk_level_spec *newer = &recipe->level[older + 1];
    for (int side = LK_K; side <= LK_V; side++) {
        int had = side == LK_K ? newer->k.bits : newer->v.bits;
        if (codec[side].bits > had)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' keeps %s in %d bits, but its rows come from '%s' with %d bits", name,
                side_name(side), codec[side].bits, newer->name, had);
        const struct lk_codec *from = side == LK_K ? &newer->k : &newer->v;
        if (from->projection && codec[side].projection != from->projection)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' keeps %s %s, but its rows come from '%s', which keeps latents%s", name,
                side_name(side), codec[side].projection ? "as other latents" : "whole", newer->name,
                from->projection == LK_LATENTS_PRE ? " before RoPE" : "");
        if (from->projection && codec[side].share > from->share && from->share)
            return lk_scan_fail(
                scan, codec_at, false,
                "'%s' keeps %s at a higher rank than '%s', from where its rows come", name,
                side_name(side), newer->name);
        if (newer->range == LK_RESIDUAL && codec[side].coding == LK_KIVI &&
            newer->n_tok % codec[side].group)
            return lk_scan_fail(scan, at[older + 1], false,
                                "'%s' is not a multiple of the group of %d tokens", newer->name,
                                codec[side].group);
    }
    return LK_OK;
}

/* A row is replaced by another where it lies. */
static lk_status check_slots(const struct lk_scan *scan, const struct lk_limit *limit,
                             const struct lk_codec codec[2], size_t at) {
    if (limit->policy.keep == LK_POLICY_NONE) return LK_OK;
    for (int side = LK_K; side <= LK_V; side++)
        if (!lk_codec_replaces(&codec[side], side))
            return lk_scan_fail(scan, at, false,
                                "this codec takes the %ss of several tokens together, and none can "
                                "be replaced by another: use f16, int8 or rot",
                                side_name(side));
    return LK_OK;
}

/* Rows that a body lets go are the same on both sides, so rows must reach it at the same time. */
static lk_status check_evicting(const struct lk_recipe *recipe, const struct lk_scan *scan,
                                const size_t *at, const size_t *override_at, int body) {
    const struct lk_level_spec *level = &recipe->level[body];
    for (int i = 0; i < recipe->n_level; i++) {
        if (!recipe->level[i].shift) continue;
        if (!lk_limit_none(&level->limit) || recipe->n_override > 0)
            return lk_scan_fail(
                scan, at[i], false,
                "sinks shift where the body is none: other rows would lose their distances");
        if (recipe->level[i].k.projection)
            return lk_scan_fail(
                scan, at[i], false,
                "sinks that shift keep K whole: say 'f16' or 'int8' instead of latents");
    }
    if (!lk_recipe_evicts(recipe)) return LK_OK;
    for (int i = body + 1; i < recipe->n_level; i++)
        if (recipe->level[i].range == LK_RESIDUAL)
            return lk_scan_fail(scan, at[i], false,
                                "a residual lets K and V go at different times: say 'window' where "
                                "rows are dropped");
    lk_status status =
        check_slots(scan, &level->limit, (const struct lk_codec[]){level->k, level->v}, at[body]);
    for (int i = 0; i < recipe->n_override && !status; i++) {
        const struct lk_override *o = &recipe->override[i];
        const struct lk_limit *limit =
            o->limit.policy.keep != LK_POLICY_NONE ? &o->limit : &level->limit;
        status = check_slots(scan, limit, (const struct lk_codec[]){o->k, o->v}, override_at[i]);
    }
    if (status || !lk_limit_none(&level->limit)) return status;
    if (body + 1 == recipe->n_level)
        return lk_scan_fail(scan, at[body], false,
                            "a body of none needs a window for the newest tokens");
    if (recipe->n_override > 0)
        return lk_scan_fail(scan, override_at[0], false,
                            "'layers' is about the body, of which none is kept");
    return LK_OK;
}

lk_status lk_recipe_check(const struct lk_recipe *recipe, const struct lk_scan *scan,
                          const size_t *level_at, const size_t *override_at, const char *alone) {
    lk_status status = check_order(recipe, scan, level_at);
    if (status) return status;
    int body = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        const struct lk_level_spec *level = &recipe->level[i];
        if (level->range == LK_BODY)
            body = i;
        else if (alone)
            return lk_scan_fail(scan, level_at[i], false,
                                "%s leaves nothing for '%s': say 'body:' instead", alone,
                                level->name);
    }
    status = check_sums(recipe, scan, level_at);
    if (!status) status = check_evicting(recipe, scan, level_at, override_at, body);
    for (int i = body; i < recipe->n_level && !status; i++) {
        const struct lk_codec codec[2] = {recipe->level[i].k, recipe->level[i].v};
        if (lk_limit_none(&recipe->level[i].limit)) continue;
        status = check_ageing(recipe, scan, level_at, i, codec, level_at[i], recipe->level[i].name);
    }
    for (int i = 0; i < recipe->n_override && !status; i++) {
        const struct lk_codec codec[2] = {recipe->override[i].k, recipe->override[i].v};
        status = check_ageing(recipe, scan, level_at, body, codec, override_at[i], "layers");
    }
    return status;
}
