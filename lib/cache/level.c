/* Levels: how rows age, as arithmetic on counts. */
#include "cache/level.h"

#include "recipe/recipe_levels.h"

#include <math.h>

const struct lk_codec *lk_level_codec(const struct lk_level_rule *rule, int part) {
    for (int i = 0; i < rule->n_other; i++)
        if (part < LK_MAX_NAMED_HEAD && rule->other[i].heads >> part & 1)
            return &rule->other[i].codec;
    return &rule->codec;
}

static int max_int(int a, int b) { return a > b ? a : b; }

/* Whether new rows can be stored by this codec one by one. */
static bool stores_on_arrival(const struct lk_recipe *recipe, const struct lk_codec *codec) {
    return codec->coding == LK_F16 && (recipe->eager || !codec->projection);
}

/* How rows are held until they make a batch for a level with this codec. */
static struct lk_codec staging_codec(const struct lk_recipe *recipe, const struct lk_codec *codec) {
    struct lk_codec staging = lk_codec_f16;
    if (!recipe->eager || !codec->projection) return staging;
    staging.projection = codec->projection;
    staging.share = codec->share;
    staging.group = codec->group;
    return staging;
}

/* Whether a level can store rows of this side one by one. */
static bool stores_single_rows(const struct lk_level_spec *spec, enum lk_side side) {
    bool single = lk_codec_single_rows(side == LK_K ? &spec->k : &spec->v, side);
    for (int i = 0; i < spec->n_head_codecs; i++) {
        const struct lk_head_codecs *other = &spec->head_codecs[i];
        single &= lk_codec_single_rows(side == LK_K ? &other->k : &other->v, side);
    }
    return single;
}

/* How rows arrive in a level: in batches of whole blocks, of the same size for K and V if the
 * recipe evicts. Rows enter a level with a limit one by one if its codecs allow it, because only
 * then does the newer level keep exactly its size. */
static void set_arrival(struct lk_level_rule *rule, const struct lk_level_spec *spec,
                        enum lk_side side, bool evicts, int64_t n_ctx) {
    bool sigma[2] = {spec->k.sigma, spec->v.sigma};
    int rows[2] = {lk_codec_block_rows(&spec->k, LK_K), lk_codec_block_rows(&spec->v, LK_V)};
    rule->calibrate_rows =
        (evicts ? sigma[LK_K] || sigma[LK_V] : sigma[side]) ? LK_CALIBRATE_ROWS : 0;
    rule->batch_in = max_int(LK_TILE, evicts ? max_int(rows[LK_K], rows[LK_V]) : rows[side]);
    bool single = stores_single_rows(spec, LK_K) && stores_single_rows(spec, LK_V);
    if (rule->limit.policy.kind == LK_POLICY_NONE) return;
    if (single) rule->batch_in = 1;
    if (rule->limit.of_context)
        rule->limit.n_tok = (uint32_t)ceil(rule->limit.percent / 100.0 * (double)n_ctx);
    if (rule->limit.of_context) rule->limit.percent = 0;
    rule->limit.n_tok = (rule->limit.n_tok + rule->batch_in - 1) / rule->batch_in * rule->batch_in;
}

static void set_departure(struct lk_level_rule *rule, const struct lk_level_spec *spec,
                          enum lk_side side, const struct lk_level_rule *older,
                          const struct lk_level_spec *older_spec) {
    if (spec->range == LK_RESIDUAL) {
        /* As in KIVI's code: K is flushed when its buffer is full, V slides by one token. */
        bool slides =
            side == LK_V && stores_single_rows(older_spec, side) && stores_single_rows(spec, side);
        int whole =
            ((int)spec->n_tok + older->block_rows - 1) / older->block_rows * older->block_rows;
        rule->keep = side == LK_V ? spec->n_tok : 0;
        rule->batch = side == LK_K ? whole : slides ? 1 : max_int(LK_TILE, older->block_rows);
        return;
    }
    rule->keep = spec->n_tok;
    rule->percent = spec->percent;
    rule->batch = older->batch_in;
}

/* Replace a codec of few bits. */
static void refine_codec(struct lk_codec *codec) {
    if (codec->coding != LK_F16 && codec->coding != LK_INT8)
        *codec = (struct lk_codec){.coding = LK_ROT, .bits = 8};
}

/* The codecs of heads that differ from the others of the level. */
static void set_head_codecs(struct lk_level_rule *rule, const struct lk_level_spec *spec,
                            enum lk_side side) {
    for (int i = 0; i < spec->n_head_codecs; i++) {
        const struct lk_head_codecs *from = &spec->head_codecs[i];
        const struct lk_codec *codec = side == LK_K ? &from->k : &from->v;
        if (codec->bits == rule->codec.bits && codec->lloyd == rule->codec.lloyd &&
            codec->trellis == rule->codec.trellis)
            continue;
        rule->other[rule->n_other].heads = from->heads;
        rule->other[rule->n_other++].codec = *codec;
    }
}

int lk_level_rules(const struct lk_recipe *recipe, int layer, int n_layer, enum lk_side side,
                   unsigned kind, int64_t n_ctx, struct lk_level_rule *out) {
    struct lk_level_spec spec[LK_MAX_LEVEL];
    bool swa = kind & LK_RULES_SLIDING;
    lk_recipe_levels(recipe, layer, n_layer, spec);
    for (int i = 0; kind & LK_RULES_FINE_K && i < recipe->n_level; i++) {
        refine_codec(&spec[i].k);
        for (int j = 0; j < spec[i].n_head_codecs; j++) refine_codec(&spec[i].head_codecs[j].k);
    }
    bool evicts = lk_recipe_evicts(recipe);
    int n = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        if (spec[i].range == LK_SINK && swa) continue;
        struct lk_level_rule *rule = &out[n];
        *rule = (struct lk_level_rule){.codec = side == LK_K ? spec[i].k : spec[i].v, .spec = i};
        set_head_codecs(rule, &spec[i], side);
        rule->block_rows = lk_codec_block_rows(&rule->codec, side);
        if (!swa || lk_limit_is_zero(&spec[i].limit)) rule->limit = spec[i].limit;
        set_arrival(rule, &spec[i], side, evicts, n_ctx);
        if (spec[i].range == LK_SINK) {
            rule->keep = spec[i].n_tok;
            rule->shift = spec[i].shift;
            if (rule->codec.coding == LK_F16) rule->block_rows = (int)spec[i].n_tok;
        } else if (spec[i].range != LK_BODY) {
            set_departure(rule, &spec[i], side, &out[n - 1], &spec[out[n - 1].spec]);
        }
        n++;
    }
    const struct lk_level_rule *newest = &out[n - 1];
    const struct lk_level_spec *last = &spec[recipe->n_level - 1];
    bool limited = newest->limit.policy.kind != LK_POLICY_NONE,
         ready = stores_on_arrival(recipe, side == LK_K ? &last->k : &last->v);
    if (evicts) /* K and V have the same levels */
        ready = stores_on_arrival(recipe, &last->k) && stores_on_arrival(recipe, &last->v);
    if (!ready || limited) {
        /* Staging level: encoding whole tiles is far cheaper, and the newest rows stay exact. In an
         * eager recipe they are latents already, of the rank of the newest level. */
        out[n] = (struct lk_level_rule){.codec = staging_codec(recipe, &newest->codec),
                                        .spec = recipe->n_level,
                                        .block_rows = LK_TILE,
                                        .batch = newest->batch_in};
        n++;
    }
    return n;
}

uint32_t lk_level_sinks(const struct lk_level_rule *rule, int n_level) {
    return n_level > 1 && rule[0].batch == 0 && rule[0].keep > 0 ? rule[0].keep : 0;
}

/* Whether level i holds rows, or an older one that is not the sinks does: these rows have been in
 * level i. A level can be empty later if a newer residual passes on all its rows. */
static bool has_received(const struct lk_level_count *count, int oldest, int i) {
    while (i > oldest && count[i].rows == 0) i--;
    return count[i].rows > 0;
}

bool lk_level_next_move(const struct lk_level_rule *rule, const struct lk_level_count *count,
                        int n_level, int64_t n_tok, int *from, int *n) {
    int oldest = lk_level_sinks(rule, n_level) ? 1 : 0;
    for (int i = n_level - 1; i > oldest; i--) {
        int64_t keep = rule[i].keep;
        if (rule[i].percent > 0) keep = (int64_t)ceil(rule[i].percent / 100.0 * (double)n_tok);
        if (count[i].rows < keep + rule[i].batch) continue;
        /* Channel statistics are computed from the rows held when the first batch leaves. */
        if (count[i].rows < rule[i - 1].calibrate_rows && !has_received(count, oldest, i - 1))
            continue;
        *from = i;
        *n = rule[i].batch;
        return true;
    }
    return false;
}

int64_t lk_level_room(const struct lk_level_rule *rule, const struct lk_level_count *count,
                      int64_t n_tok, int64_t n) {
    if (rule->limit.policy.kind == LK_POLICY_NONE) return n;
    int64_t max = rule->limit.n_tok;
    if (rule->limit.percent > 0) {
        max = (int64_t)ceil(rule->limit.percent / 100.0 * (double)n_tok);
        max = (max + rule->batch_in - 1) / rule->batch_in * rule->batch_in;
    }
    int64_t room = max - count->rows;
    return room < 0 ? 0 : room < n ? room : n;
}

int64_t lk_level_blocks(const struct lk_level_rule *rule, const struct lk_level_count *count) {
    if (count->rows == 0) return 0;
    return (count->skip + count->rows + rule->block_rows - 1) / rule->block_rows;
}

void lk_level_remove(const struct lk_level_rule *rule, struct lk_level_count *count, int64_t n) {
    count->rows -= n;
    count->skip = count->rows == 0 ? 0 : (int32_t)((count->skip + n) % rule->block_rows);
}

static void update_max_blocks(const struct lk_level_rule *rule, const struct lk_level_count *count,
                              int n_level, int64_t *max_blocks) {
    for (int i = 0; max_blocks && i < n_level; i++) {
        int64_t blocks = lk_level_blocks(&rule[i], &count[i]);
        if (max_blocks[i] < blocks) max_blocks[i] = blocks;
    }
}

int64_t lk_level_droppable(const struct lk_level_rule *rule, const struct lk_level_count *count,
                           int64_t first, int64_t n_tok, int n_swa) {
    int64_t unseen = n_tok - n_swa + 1 - first; /* rows older than the next query's window */
    if (unseen <= 0) return 0;
    if (unseen >= count->rows) return count->rows;
    int64_t whole = (count->skip + unseen) / rule->block_rows * rule->block_rows - count->skip;
    return whole > 0 ? whole : 0;
}

void lk_level_advance(const struct lk_level_rule *rule, struct lk_level_count *count, int n_level,
                      int64_t n_tok, int64_t n_new, int n_swa, int64_t *first,
                      int64_t *max_blocks) {
    int64_t sinks = (int64_t)lk_level_sinks(rule, n_level) - n_tok;
    if (sinks > n_new) sinks = n_new;
    if (sinks < 0) sinks = 0;
    count[0].rows += sinks;
    count[n_level - 1].rows += n_new - sinks;
    update_max_blocks(rule, count, n_level, max_blocks);
    int from, n;
    while (lk_level_next_move(rule, count, n_level, n_tok + n_new, &from, &n)) {
        int64_t stay = lk_level_room(&rule[from - 1], &count[from - 1], n_tok + n_new, n);
        count[from - 1].rows += stay;
        update_max_blocks(rule, count, n_level, max_blocks);
        lk_level_remove(&rule[from], &count[from], n);
        *first += n - stay;
    }
    if (n_swa <= 0) return;
    for (int i = 0; i < n_level; i++) {
        int64_t drop = lk_level_droppable(&rule[i], &count[i], *first, n_tok + n_new, n_swa);
        lk_level_remove(&rule[i], &count[i], drop);
        *first += drop;
        if (count[i].rows) break;
    }
}
