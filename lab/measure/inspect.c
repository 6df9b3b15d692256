/* What the cache of a session holds, layer by layer and level by level, and how good it is. */
#include "measure/probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double lk_holding_bits(const lk_holding *h) {
    return h->values ? 8.0 * (double)h->bytes / (double)h->values : NAN;
}

double lk_holding_error(const lk_holding *h) { return h->power > 0 ? h->error / h->power : NAN; }

/* An inspection and the ledger of its memory. */
struct inspection {
    lk_inspection in; /* first: callers get its address */
    struct lk_ledger ledger;
};

/* ---- the two sessions ---- */

enum { FULL, RECIPE };

/* Progress: a token that is decoded, with its attention measured, takes the time of so many tokens
 * of the prompt. */
enum { DECODE_COST = 16 };

struct inspect_sessions {
    lk_recipe *f16;
    lk_session *session[2];
    struct lk_probe *probe[2];
    const lk_inspect_opts *opts;
    size_t done, n_prompt, total; /* progress: finished, of one prompt, of everything */
};

/* Progress of one prompt as progress of everything. */
static bool prompt_progress(void *user, uint64_t done, uint64_t total) {
    const struct inspect_sessions *s = user;
    uint64_t tokens = (uint64_t)((double)done / (double)total * (double)s->n_prompt);
    return !s->opts->progress || s->opts->progress(s->opts->user, s->done + tokens, s->total);
}

static void close_sessions(struct inspect_sessions *s) {
    for (int i = 0; i < 2; i++) {
        lk_probe_free(s->probe[i]);
        lk_session_free(s->session[i]);
    }
    lk_recipe_free(s->f16);
}

static lk_status open_sessions(struct inspect_sessions *s, lk_model *model, const lk_recipe *recipe,
                               size_t n_tok, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .progress = prompt_progress, .user = s};
    lk_status status = lk_recipe_parse(&s->f16, "f16", err);
    for (int i = 0; !status && i < 2; i++) {
        status = lk_session_new(&s->session[i], model, i == RECIPE ? recipe : s->f16, &opts, err);
        if (!status) status = lk_probe_new(&s->probe[i], s->session[i], err);
    }
    return status;
}

/* ---- measuring ---- */

/* Entry of the recipe's level that a level of the cache was made from. */
static lk_holding *holding_at(const lk_inspection *in, const struct lk_kv *kv, int layer,
                              enum lk_side side, int level) {
    return &in->at[layer * in->n_level + kv->rule[level].spec][side];
}

/* Add the attention of the newest token. */
static void add_attention(lk_inspection *in, const struct inspect_sessions *s) {
    for (int layer = 0; layer < in->n_layer; layer++) {
        in->hellinger[layer] +=
            lk_probe_hellinger(s->probe[FULL], s->probe[RECIPE], layer) / (double)in->n_query;
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &s->session[RECIPE]->cache->kv[layer][side];
            for (int i = 0; i < kv->n_level; i++)
                holding_at(in, kv, layer, side, i)->mass +=
                    s->probe[RECIPE]->mass[layer][side][i] / (double)in->n_query;
        }
    }
}

static lk_status eval_tokens(lk_inspection *in, struct inspect_sessions *s, const int32_t *tok,
                             lk_err *err) {
    lk_status status = LK_OK;
    s->n_prompt = in->n_tok - in->n_query;
    s->total = 2 * (s->n_prompt + in->n_query * DECODE_COST);
    for (int i = 0; !status && i < 2; i++) {
        status = lk_session_sync(s->session[i], tok, s->n_prompt, NULL, err);
        s->done += s->n_prompt;
    }
    for (size_t at = s->n_prompt; !status && at < in->n_tok; at++) {
        for (int i = 0; !status && i < 2; i++)
            status = lk_session_eval(s->session[i], tok + at, 1, false, err);
        if (!status) add_attention(in, s);
        s->done += 2 * DECODE_COST;
        if (!status && s->opts->progress && !s->opts->progress(s->opts->user, s->done, s->total))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled");
    }
    return status;
}

/* Add the rows that one side of a layer holds now. */
static void add_rows(lk_inspection *in, const struct inspect_sessions *s, int layer,
                     enum lk_side side) {
    const struct lk_kv *kv = &s->session[RECIPE]->cache->kv[layer][side];
    for (int i = 0; i < kv->n_level; i++) {
        lk_holding *at = holding_at(in, kv, layer, side, i),
                   *sum = &in->level[kv->rule[i].spec][side];
        struct lk_row_error error =
            lk_probe_row_error(s->session[FULL], s->session[RECIPE], layer, side, i);
        lk_codec_print(&kv->rule[i].codec, side, at->codec, sizeof at->codec);
        at->rows = kv->count[i].rows;
        at->bytes = (uint64_t)kv->level[i].n_block * kv->level[i].block_bytes;
        at->values = (uint64_t)at->rows * lk_kv_width(kv);
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

/* ---- the inspection ---- */

static lk_status inspection_new(struct inspection **out, int n_layer, const lk_recipe *recipe,
                                lk_err *err) {
    struct lk_ledger temporary = {0}; /* until the inspection holds its own */
    struct inspection *self = lk_alloc(&temporary, LK_FOR_OTHER, sizeof *self);
    if (!self) return lk_fail(err, LK_E_NOMEM, "no memory for an inspection");
    lk_inspection *in = &self->in;
    struct lk_ledger *ledger = &self->ledger;
    in->n_layer = n_layer;
    in->n_level = recipe->n_level + 1;
    in->name = lk_alloc(ledger, LK_FOR_OTHER, in->n_level * sizeof *in->name);
    in->at = lk_alloc(ledger, LK_FOR_OTHER, (size_t)n_layer * in->n_level * sizeof *in->at);
    in->level = lk_alloc(ledger, LK_FOR_OTHER, in->n_level * sizeof *in->level);
    in->hellinger = lk_alloc(ledger, LK_FOR_OTHER, n_layer * sizeof *in->hellinger);
    if (!in->name || !in->at || !in->level || !in->hellinger) {
        lk_inspection_free(in);
        return lk_fail(err, LK_E_NOMEM, "no memory to inspect %d layers", n_layer);
    }
    for (int i = 0; i < in->n_level; i++)
        snprintf(in->name[i], sizeof in->name[i], "%s",
                 i < recipe->n_level ? recipe->level[i].name : "newest");
    *out = self;
    return LK_OK;
}

void lk_inspection_free(lk_inspection *in) {
    if (!in) return;
    struct inspection *self = (struct inspection *)in;
    struct lk_ledger *ledger = &self->ledger, last = {0};
    lk_release(ledger, LK_FOR_OTHER, in->hellinger, in->n_layer * sizeof *in->hellinger);
    lk_release(ledger, LK_FOR_OTHER, in->level, in->n_level * sizeof *in->level);
    lk_release(ledger, LK_FOR_OTHER, in->at, (size_t)in->n_layer * in->n_level * sizeof *in->at);
    lk_release(ledger, LK_FOR_OTHER, in->name, in->n_level * sizeof *in->name);
    lk_ledger_add(&last, LK_FOR_OTHER, sizeof *self);
    lk_release(&last, LK_FOR_OTHER, self, sizeof *self);
}

lk_status lk_inspect(lk_inspection **out, lk_model *model, const lk_recipe *recipe,
                     const int32_t *tok, size_t n_tok, const lk_inspect_opts *opts, lk_err *err) {
    if (opts->n_query < 1 || opts->n_query >= n_tok)
        return lk_fail(err, LK_E_ARG, "%zu queries need a text of more than %zu tokens, not %zu",
                       opts->n_query, opts->n_query, n_tok);
    struct inspection *self = NULL;
    lk_status status = inspection_new(&self, lk_model_get_info(model).n_cached, recipe, err);
    if (status) return status;
    lk_inspection *in = &self->in;
    in->n_tok = n_tok;
    in->n_query = opts->n_query;
    struct inspect_sessions s = {.opts = opts};
    status = open_sessions(&s, model, recipe, n_tok, err);
    if (!status) status = eval_tokens(in, &s, tok, err);
    if (!status) {
        for (int layer = 0; layer < in->n_layer; layer++)
            for (int side = 0; side < 2; side++) add_rows(in, &s, layer, side);
        in->stats = lk_session_get_stats(s.session[RECIPE]);
    }
    close_sessions(&s);
    if (status)
        lk_inspection_free(in);
    else
        *out = in;
    return status;
}
