#include "cache/level.h"

#include <math.h>

static int larger(int a, int b) { return a > b ? a : b; }

/* How rows come to a level: in batches of whole blocks; one by one where they are dropped at once. Where
 * rows are let go, K and V come together, and only single rows leave the newer level as it should be. */
static void set_coming(struct lk_level_rule *rule, const struct lk_level_spec *spec,
                       enum lk_side side, bool evicts, int64_t n_ctx) {
    bool sigma[2] = {spec->k.sigma, spec->v.sigma};
    int rows[2] = {lk_codec_block_rows(&spec->k, LK_K), lk_codec_block_rows(&spec->v, LK_V)};
    rule->wait = (evicts ? sigma[LK_K] || sigma[LK_V] : sigma[side]) ? LK_CALIBRATE_ROWS : 0;
    rule->coming = larger(LK_TILE, evicts ? larger(rows[LK_K], rows[LK_V]) : rows[side]);
    bool single = lk_codec_single_rows(&spec->k, LK_K) && lk_codec_single_rows(&spec->v, LK_V);
    if (rule->limit.policy.keep == LK_POLICY_NONE) return;
    if (single) rule->coming = 1;
    if (rule->limit.of_context)
        rule->limit.n_tok = (uint32_t)ceil(rule->limit.percent / 100.0 * (double)n_ctx);
    if (rule->limit.of_context) rule->limit.percent = 0;
    rule->limit.n_tok = (rule->limit.n_tok + rule->coming - 1) / rule->coming * rule->coming;
}

static void set_leaving(struct lk_level_rule *rule, const struct lk_level_spec *spec,
                        enum lk_side side, const struct lk_level_rule *older) {
    if (spec->range == LK_RESIDUAL) {
        /* KIVI's code: K is flushed when the buffer is full, V slides by one token. */
        bool slides = side == LK_V && lk_codec_single_rows(&older->codec, side) &&
                      lk_codec_single_rows(&rule->codec, side);
        int whole =
            ((int)spec->n_tok + older->block_rows - 1) / older->block_rows * older->block_rows;
        rule->keep = side == LK_V ? spec->n_tok : 0;
        rule->batch = side == LK_K ? whole : slides ? 1 : larger(LK_TILE, older->block_rows);
        return;
    }
    rule->keep = spec->n_tok;
    rule->percent = spec->percent;
    rule->batch = older->coming;
}

int lk_level_rules(const struct lk_recipe *recipe, int layer, int n_layer, enum lk_side side,
                   bool swa, int64_t n_ctx, struct lk_level_rule *out) {
    struct lk_level_spec spec[LK_MAX_LEVEL];
    lk_recipe_levels(recipe, layer, n_layer, spec);
    bool evicts = lk_recipe_evicts(recipe);
    int n = 0;
    for (int i = 0; i < recipe->n_level; i++) {
        if (spec[i].range == LK_SINK && swa) continue;
        struct lk_level_rule *rule = &out[n];
        *rule = (struct lk_level_rule){.codec = side == LK_K ? spec[i].k : spec[i].v, .spec = i};
        rule->block_rows = lk_codec_block_rows(&rule->codec, side);
        if (!swa || lk_limit_none(&spec[i].limit)) rule->limit = spec[i].limit;
        set_coming(rule, &spec[i], side, evicts, n_ctx);
        if (spec[i].range == LK_SINK) {
            rule->keep = spec[i].n_tok;
            rule->shift = spec[i].shift;
            if (rule->codec.coding == LK_F16) rule->block_rows = (int)spec[i].n_tok;
        } else if (spec[i].range != LK_BODY) {
            set_leaving(rule, &spec[i], side, &out[n - 1]);
        }
        n++;
    }
    const struct lk_level_rule *newest = &out[n - 1];
    bool limited = newest->limit.policy.keep != LK_POLICY_NONE;
    if (newest->codec.coding != LK_F16 || newest->codec.projection ||
        limited) { /* coding whole tiles is cheaper by far, and the newest rows stay exact */
        out[n] = (struct lk_level_rule){.codec = lk_exact,
                                        .spec = recipe->n_level,
                                        .block_rows = LK_TILE,
                                        .batch = newest->coming};
        n++;
    }
    return n;
}

uint32_t lk_level_sinks(const struct lk_level_rule *rule, int n_level) {
    return n_level > 1 && rule[0].batch == 0 && rule[0].keep > 0 ? rule[0].keep : 0;
}

bool lk_level_next_move(const struct lk_level_rule *rule, const struct lk_fill *fill, int n_level,
                        int64_t n_tok, int *from, int *n) {
    int oldest = lk_level_sinks(rule, n_level) ? 1 : 0;
    for (int i = n_level - 1; i > oldest; i--) {
        int64_t keep = rule[i].keep;
        if (rule[i].percent > 0) keep = (int64_t)ceil(rule[i].percent / 100.0 * (double)n_tok);
        if (fill[i].rows < keep + rule[i].batch) continue;
        /* Channel statistics are taken from the rows at hand when the first of them leave. */
        if (fill[i - 1].rows == 0 && fill[i].rows < rule[i - 1].wait) continue;
        *from = i;
        *n = rule[i].batch;
        return true;
    }
    return false;
}

int64_t lk_level_room(const struct lk_level_rule *rule, const struct lk_fill *fill, int64_t n_tok,
                      int64_t n) {
    if (rule->limit.policy.keep == LK_POLICY_NONE) return n;
    int64_t most = rule->limit.n_tok;
    if (rule->limit.percent > 0) {
        most = (int64_t)ceil(rule->limit.percent / 100.0 * (double)n_tok);
        most = (most + rule->coming - 1) / rule->coming * rule->coming;
    }
    int64_t room = most - fill->rows;
    return room < 0 ? 0 : room < n ? room : n;
}

int64_t lk_level_blocks(const struct lk_level_rule *rule, const struct lk_fill *fill) {
    if (fill->rows == 0) return 0;
    return (fill->skip + fill->rows + rule->block_rows - 1) / rule->block_rows;
}

void lk_level_take(const struct lk_level_rule *rule, struct lk_fill *fill, int64_t n) {
    fill->rows -= n;
    fill->skip = fill->rows == 0 ? 0 : (int32_t)((fill->skip + n) % rule->block_rows);
}

void lk_level_put(struct lk_fill *fill, int64_t n) { fill->rows += n; }

static void note_most(const struct lk_level_rule *rule, const struct lk_fill *fill, int n_level,
                      int64_t *most) {
    for (int i = 0; most && i < n_level; i++) {
        int64_t blocks = lk_level_blocks(&rule[i], &fill[i]);
        if (most[i] < blocks) most[i] = blocks;
    }
}

int64_t lk_level_droppable(const struct lk_level_rule *rule, const struct lk_fill *fill,
                           int64_t first, int64_t n_tok, int n_swa) {
    int64_t unseen = n_tok - n_swa + 1 - first; /* rows older than the next query's window */
    if (unseen <= 0) return 0;
    if (unseen >= fill->rows) return fill->rows;
    int64_t whole = (fill->skip + unseen) / rule->block_rows * rule->block_rows - fill->skip;
    return whole > 0 ? whole : 0;
}

void lk_level_advance(const struct lk_level_rule *rule, struct lk_fill *fill, int n_level,
                      int64_t n_tok, int64_t n_new, int n_swa, int64_t *first, int64_t *most) {
    int64_t sinks = (int64_t)lk_level_sinks(rule, n_level) - n_tok;
    if (sinks > n_new) sinks = n_new;
    if (sinks < 0) sinks = 0;
    lk_level_put(&fill[0], sinks);
    lk_level_put(&fill[n_level - 1], n_new - sinks);
    note_most(rule, fill, n_level, most);
    int from, n;
    while (lk_level_next_move(rule, fill, n_level, n_tok + n_new, &from, &n)) {
        int64_t stay = lk_level_room(&rule[from - 1], &fill[from - 1], n_tok + n_new, n);
        lk_level_put(&fill[from - 1], stay);
        note_most(rule, fill, n_level, most);
        lk_level_take(&rule[from], &fill[from], n);
        *first += n - stay;
    }
    if (n_swa <= 0) return;
    for (int i = 0; i < n_level; i++) {
        int64_t drop = lk_level_droppable(&rule[i], &fill[i], *first, n_tok + n_new, n_swa);
        lk_level_take(&rule[i], &fill[i], drop);
        *first += drop;
        if (fill[i].rows) break;
    }
}
