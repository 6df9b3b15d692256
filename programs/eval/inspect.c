#include "eval/inspect.h"

#include <math.h>
#include <string.h>

double lk_holding_bits(const struct lk_holding *h) {
    return h->values ? 8.0 * (double)h->bytes / (double)h->values : NAN;
}

double lk_holding_error(const struct lk_holding *h) {
    return h->power > 0 ? h->error / h->power : NAN;
}

/* The two sessions that read. */
struct readers {
    lk_recipe *f16;
    lk_session *session[2]; /* full, recipe */
    struct lk_probe *probe[2];
    lk_progress progress;
    void *user;
    size_t done, part, total; /* tokens: read before, of the prompt under way, in all */
};

static bool on_prompt(void *user, uint64_t done, uint64_t total) {
    const struct readers *r = user;
    return !r->progress ||
           r->progress(r->user,
                       r->done + (uint64_t)((double)done / (double)total * (double)r->part),
                       r->total);
}

static void close_readers(struct readers *r) {
    for (int i = 0; i < 2; i++) {
        lk_probe_free(r->probe[i]);
        lk_session_free(r->session[i]);
    }
    lk_recipe_free(r->f16);
}

static lk_status open_readers(struct readers *r, lk_model *model, const lk_recipe *recipe,
                              size_t n_tok, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .progress = on_prompt, .user = r};
    lk_status status = lk_recipe_parse(&r->f16, "f16", err);
    for (int i = 0; status == LK_OK && i < 2; i++) {
        status = lk_session_new(&r->session[i], model, i ? recipe : r->f16, &opts, err);
        if (status == LK_OK) status = lk_probe_new(&r->probe[i], r->session[i], err);
    }
    return status;
}

/* The recipe's level that a stream's level was made from. */
static int level_of(const struct lk_kv *kv, int i) { return kv->rule[i].spec; }

/* What the newest token's queries saw. */
static void add_attention(struct lk_inspection *in, const struct readers *r) {
    for (int layer = 0; layer < in->n_layer; layer++) {
        in->hellinger[layer] +=
            lk_probe_hellinger(r->probe[0], r->probe[1], layer) / (double)in->n_query;
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &r->session[1]->cache->kv[layer][side];
            for (int i = 0; i < kv->n_level; i++)
                in->at[layer * in->n_level + level_of(kv, i)][side].mass +=
                    r->probe[1]->mass[layer][side][i] / (double)in->n_query;
        }
    }
}

static lk_status read_all(struct lk_inspection *in, struct readers *r, const int32_t *tok,
                          lk_err *err) {
    size_t n_prompt = in->n_tok - in->n_query;
    lk_status status = LK_OK;
    r->total = 2 * in->n_tok;
    r->part = n_prompt;
    for (int i = 0; status == LK_OK && i < 2; i++) {
        status = lk_session_sync(r->session[i], tok, n_prompt, NULL, err);
        r->done += n_prompt;
    }
    for (size_t at = n_prompt; status == LK_OK && at < in->n_tok; at++) {
        for (int i = 0; status == LK_OK && i < 2; i++)
            status = lk_session_eval(r->session[i], tok + at, 1, false, err);
        if (status == LK_OK) add_attention(in, r);
        r->done += 2;
        if (status == LK_OK && r->progress && !r->progress(r->user, r->done, r->total))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled");
    }
    return status;
}

/* Enter what a layer's stream holds now. */
static void add_stream(struct lk_inspection *in, const struct readers *r, int layer,
                       enum lk_side side) {
    const struct lk_cache_shape *shape = &r->session[1]->cache->shape;
    const struct lk_kv *kv = &r->session[1]->cache->kv[layer][side];
    for (int i = 0; i < kv->n_level; i++) {
        int k = level_of(kv, i);
        struct lk_holding *at = &in->at[layer * in->n_level + k][side], *sum = &in->level[k][side];
        struct lk_row_error error =
            lk_probe_row_error(r->session[0], r->session[1], layer, side, i);
        lk_codec_print(&kv->rule[i].codec, side, at->codec, sizeof at->codec);
        at->rows = kv->fill[i].rows;
        at->bytes = (uint64_t)kv->level[i].n_block * kv->level[i].block_bytes;
        at->values = (uint64_t)at->rows * shape->n_head_kv * shape->d_head;
        at->error = error.error;
        at->power = error.power;
        if (layer == 0)
            snprintf(sum->codec, sizeof sum->codec, "%s", at->codec);
        else if (strcmp(sum->codec, at->codec) != 0)
            snprintf(sum->codec, sizeof sum->codec, "%s", "mixed");
        if (at->rows > sum->rows) sum->rows = at->rows;
        sum->bytes += at->bytes;
        sum->values += at->values;
        sum->error += at->error;
        sum->power += at->power;
        sum->mass += at->mass / in->n_layer;
    }
}

static lk_status take(struct lk_inspection *in, lk_err *err) {
    in->name = lk_alloc(&in->ledger, LK_FOR_OTHER, in->n_level * sizeof *in->name);
    in->at =
        lk_alloc(&in->ledger, LK_FOR_OTHER, (size_t)in->n_layer * in->n_level * sizeof *in->at);
    in->level = lk_alloc(&in->ledger, LK_FOR_OTHER, in->n_level * sizeof *in->level);
    in->hellinger = lk_alloc(&in->ledger, LK_FOR_OTHER, in->n_layer * sizeof *in->hellinger);
    return in->name && in->at && in->level && in->hellinger
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory to inspect %d layers", in->n_layer);
}

lk_status lk_inspect(struct lk_inspection **out, lk_model *model, const lk_recipe *recipe,
                     const int32_t *tok, size_t n_tok, size_t n_query, lk_progress progress,
                     void *user, lk_err *err) {
    if (n_query < 1 || n_query >= n_tok)
        return lk_fail(err, LK_E_ARG, "of %zu tokens %zu cannot be queries; give more tokens",
                       n_tok, n_query);
    struct lk_ledger first = {0}; /* until the inspection holds its own */
    struct lk_inspection *in = lk_alloc(&first, LK_FOR_OTHER, sizeof *in);
    if (!in) return lk_fail(err, LK_E_NOMEM, "no memory for an inspection");
    struct readers r = {.progress = progress, .user = user};
    in->n_layer = lk_model_get_info(model).n_layer;
    in->n_level = recipe->n_level + 1;
    in->n_tok = n_tok;
    in->n_query = n_query;
    lk_status status = take(in, err);
    for (int i = 0; status == LK_OK && i < in->n_level; i++)
        snprintf(in->name[i], sizeof in->name[i], "%s",
                 i < recipe->n_level ? recipe->level[i].name : "newest");
    if (status == LK_OK) status = open_readers(&r, model, recipe, n_tok, err);
    if (status == LK_OK) status = read_all(in, &r, tok, err);
    for (int layer = 0; status == LK_OK && layer < in->n_layer; layer++)
        for (int side = 0; side < 2; side++) add_stream(in, &r, layer, side);
    if (status == LK_OK) in->stats = lk_session_get_stats(r.session[1]);
    close_readers(&r);
    if (status != LK_OK)
        lk_inspection_free(in);
    else
        *out = in;
    return status;
}

void lk_inspection_free(struct lk_inspection *in) {
    if (!in) return;
    lk_release(&in->ledger, LK_FOR_OTHER, in->hellinger, in->n_layer * sizeof *in->hellinger);
    lk_release(&in->ledger, LK_FOR_OTHER, in->level, in->n_level * sizeof *in->level);
    lk_release(&in->ledger, LK_FOR_OTHER, in->at,
               (size_t)in->n_layer * in->n_level * sizeof *in->at);
    lk_release(&in->ledger, LK_FOR_OTHER, in->name, in->n_level * sizeof *in->name);
    struct lk_ledger last = {0};
    lk_ledger_enter(&last, LK_FOR_OTHER, sizeof *in);
    lk_release(&last, LK_FOR_OTHER, in, sizeof *in);
}
