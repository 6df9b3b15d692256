/* Levels of the account: the rules of a recipe, on counts. */
#include "plain_cache.h"

#include <math.h>
#include <string.h>

static int max_int(int a, int b) { return a > b ? a : b; }

static bool names_layer(const struct lk_override *o, int layer, int n_layer) {
    int first = o->first < 0 ? n_layer + o->first : o->first;
    int last = o->last < 0 ? n_layer + o->last : o->last;
    return first <= layer && layer <= last;
}

/* The recipe's level `i` in a layer: `layers` changes the codecs of a level, and the limit of the
 * body. */
static struct lk_level_spec spec_of(const struct lk_recipe *recipe, int i, int layer, int n_layer) {
    struct lk_level_spec spec = recipe->level[i];
    for (int j = 0; j < recipe->n_override; j++) {
        const struct lk_override *o = &recipe->override[j];
        if (o->level != i || o->heads || !names_layer(o, layer, n_layer)) continue;
        spec.k = o->k;
        spec.v = o->v;
        if (o->limit.policy.kind != LK_POLICY_NONE) spec.limit = o->limit;
    }
    return spec;
}

/* The codec of a KV head: the last part of the recipe that names it counts. */
static struct lk_codec codec_of_head(const struct lk_recipe *recipe, int i, int layer, int n_layer,
                                     int side, int head) {
    struct lk_codec codec = side == LK_K ? recipe->level[i].k : recipe->level[i].v;
    for (int j = 0; j < recipe->n_override; j++) {
        const struct lk_override *o = &recipe->override[j];
        bool named = o->heads == 0 || (o->heads >> head & 1);
        if (o->level == i && named && names_layer(o, layer, n_layer))
            codec = side == LK_K ? o->k : o->v;
    }
    return codec;
}

static bool keeps_nothing(const struct lk_limit *limit) {
    return limit->policy.kind != LK_POLICY_NONE && limit->n_tok == 0 && limit->percent == 0;
}

/* Does any layer evict? All layers then move K and V together. */
static bool recipe_evicts(const struct lk_recipe *recipe) {
    bool any = false;
    for (int i = 0; i < recipe->n_level; i++)
        any |= recipe->level[i].limit.policy.kind != LK_POLICY_NONE;
    for (int i = 0; i < recipe->n_override; i++)
        any |= recipe->override[i].limit.policy.kind != LK_POLICY_NONE;
    return any;
}

bool plain_replays(const struct plain_cache *cache, int layer) {
    const struct plain_kv *kv = &cache->layer[layer].kv[LK_K];
    bool any = false;
    for (int i = 0; cache->layer[layer].evicts && i < kv->n_level; i++)
        any |= kv->level[i].policy.kind == LK_POLICY_REPLAY;
    return any;
}

bool plain_layer_evicts(const struct plain_setting *set, int layer) {
    const struct lk_recipe *recipe = set->recipe;
    if (plain_is_swa(set->model, layer)) return false;
    for (int i = 0; i < recipe->n_level; i++) {
        struct lk_level_spec spec = spec_of(recipe, i, layer, set->model->n_layer);
        if (spec.limit.policy.kind != LK_POLICY_NONE &&
            (recipe->absorbs || !keeps_nothing(&spec.limit)))
            return true;
    }
    return false;
}

/* Parts and ranks (sidecar/basis.h). */
static void set_parts(const struct plain_setting *set, int layer, int side,
                      struct plain_level *level) {
    const struct plain_model *m = set->model;
    const struct lk_codec *codec = &level->codec;
    level->n_part = m->n_head_kv;
    level->n_head = 1;
    level->d_part = m->d_head;
    for (int i = 0; i < level->n_part; i++) level->rank[i] = m->d_head;
    if (codec->projection == LK_PROJECTION_NONE) return;
    level->pre = codec->projection == LK_PROJECTION_LATENT_PRE;
    const struct plain_basis *basis = &set->basis[side == LK_V ? PLAIN_V
                                                  : level->pre ? PLAIN_KPRE
                                                               : PLAIN_K][layer];
    int unit = lk_codec_unit(codec, side);
    level->basis = basis;
    level->n_part = basis->n_group;
    level->n_head = basis->width / m->d_head;
    level->d_part = 0;
    for (int g = 0; g < basis->n_group; g++) {
        double wanted = codec->share ? basis->width * (codec->share / 100000.0) : basis->rank[g];
        int rounded = max_int(1, (int)floor(wanted / unit + 0.5)) * unit;
        level->rank[g] = rounded > basis->width ? basis->width / unit * unit : rounded;
        level->d_part = max_int(level->d_part, level->rank[g]);
    }
}

static void set_arrival(const struct plain_setting *set, struct plain_level *level,
                        const struct lk_level_spec *spec, int side, bool evicts) {
    int rows_k = lk_codec_block_rows(&spec->k, LK_K), rows_v = lk_codec_block_rows(&spec->v, LK_V);
    int rows = evicts ? max_int(rows_k, rows_v) : side == LK_K ? rows_k : rows_v;
    bool sigma = evicts ? spec->k.sigma || spec->v.sigma : level->codec.sigma;
    level->calibrate = sigma ? 256 : 0;
    level->batch_in = max_int(32, rows);
    if (level->policy.kind == LK_POLICY_NONE) return;
    if (lk_codec_single_rows(&spec->k, LK_K) && lk_codec_single_rows(&spec->v, LK_V))
        level->batch_in = 1;
    level->max_percent = spec->limit.of_context ? 0 : spec->limit.percent;
    level->max_rows = spec->limit.of_context
                          ? (int)ceil(spec->limit.percent / 100.0 * set->model->n_ctx)
                          : (int)spec->limit.n_tok;
    level->max_rows = (level->max_rows + level->batch_in - 1) / level->batch_in * level->batch_in;
}

/* Does a row enter a level with this codec as soon as it arrives? */
static bool enters_at_once(const struct lk_recipe *recipe, const struct lk_codec *codec) {
    return codec->coding == LK_F16 && (recipe->eager || !codec->projection);
}

int plain_levels(const struct plain_setting *set, int layer, int side, struct plain_level *out) {
    const struct lk_recipe *recipe = set->recipe;
    bool swa = plain_is_swa(set->model, layer), evicts = recipe_evicts(recipe);
    int n = 0;
    memset(out, 0, PLAIN_MAX_LEVEL * sizeof *out);
    for (int i = 0; i < recipe->n_level; i++) {
        struct lk_level_spec spec = spec_of(recipe, i, layer, set->model->n_layer);
        struct plain_level *level = &out[n];
        const struct plain_level *older = n > 0 ? level - 1 : NULL;
        if (spec.range == LK_SINK && swa) continue;
        level->codec = side == LK_K ? spec.k : spec.v;
        level->block_rows = lk_codec_block_rows(&level->codec, side);
        level->is_sink = spec.range == LK_SINK;
        level->shift = spec.shift;
        if (!swa || keeps_nothing(&spec.limit)) level->policy = spec.limit.policy;
        level->policy.seed = (uint32_t)layer;
        set_arrival(set, level, &spec, side, evicts);
        level->keep = (int)spec.n_tok;
        level->percent = spec.percent;
        if (spec.range == LK_RECENT) level->batch = older->batch_in;
        if (spec.range == LK_RESIDUAL && side == LK_K) {
            level->keep = 0; /* fills up and empties */
            level->batch =
                ((int)spec.n_tok + older->block_rows - 1) / older->block_rows * older->block_rows;
        }
        if (spec.range == LK_RESIDUAL && side == LK_V) { /* slides */
            bool one = lk_codec_single_rows(&older->codec, LK_V) &&
                       lk_codec_single_rows(&level->codec, LK_V);
            level->batch = one ? 1 : max_int(32, older->block_rows);
        }
        set_parts(set, layer, side, level);
        for (int part = 0; part < level->n_part; part++)
            level->of_part[part] =
                level->basis ? level->codec
                             : codec_of_head(recipe, i, layer, set->model->n_layer, side, part);
        n++;
    }
    /* What is not f16 gets rows in batches. K and V that move together both wait for them. If the
     * recipe is eager, they wait as latents. */
    const struct plain_level *newest = &out[n - 1];
    struct lk_level_spec spec = spec_of(recipe, recipe->n_level - 1, layer, set->model->n_layer);
    bool at_once[2] = {enters_at_once(recipe, &spec.k), enters_at_once(recipe, &spec.v)};
    if ((evicts ? at_once[0] && at_once[1] : at_once[side]) &&
        newest->policy.kind == LK_POLICY_NONE)
        return n;
    out[n] =
        (struct plain_level){.codec = lk_codec_f16, .block_rows = 32, .batch = newest->batch_in};
    if (recipe->eager && newest->codec.projection) {
        struct lk_codec codec = newest->codec;
        codec.coding = LK_F16;
        codec.bits = lk_codec_f16.bits;
        codec.sigma = false;
        out[n].codec = codec;
    }
    set_parts(set, layer, side, &out[n]);
    for (int part = 0; part < out[n].n_part; part++) out[n].of_part[part] = out[n].codec;
    return n + 1;
}

int plain_next_move(const struct plain_level *level, const int *rows, int n_level, int n_tok,
                    int *from) {
    for (int i = n_level - 1; i > 0 && !level[i - 1].is_sink; i--) {
        int keep =
            level[i].percent > 0 ? (int)ceil(level[i].percent / 100.0 * n_tok) : level[i].keep;
        if (rows[i] < keep + level[i].batch) continue;
        bool first = true; /* no row has been in the older level: it and all before it are empty */
        for (int j = i - 1; j >= 0 && !level[j].is_sink; j--) first &= rows[j] == 0;
        if (first && rows[i] < level[i - 1].calibrate) continue;
        *from = i;
        return level[i].batch;
    }
    return 0;
}

int plain_room(const struct plain_level *level, int rows, int n_tok, int n) {
    if (level->policy.kind == LK_POLICY_NONE) return n;
    int max = level->max_rows;
    if (level->max_percent > 0) {
        max = (int)ceil(level->max_percent / 100.0 * n_tok);
        max = (max + level->batch_in - 1) / level->batch_in * level->batch_in;
    }
    int room = max - rows;
    return room < 0 ? 0 : room < n ? room : n;
}

int plain_droppable(const struct plain_level *level, int rows, int skip, int first, int n_tok,
                    int n_swa) {
    int unseen = n_tok - n_swa + 1 - first; /* by the next query */
    if (unseen <= 0) return 0;
    if (unseen >= rows) return rows;
    return max_int(0, (skip + unseen) / level->block_rows * level->block_rows - skip);
}
