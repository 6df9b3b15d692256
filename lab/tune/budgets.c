/* Shares of the rows that the layers keep, for `keep N% by replay`.
 *
 * KVzip (Kim et al. 2025) keeps the rows whose scores are above one threshold for all layers and
 * heads. A prefill evicts the rows of a layer before it computes the next one, so the threshold
 * must be known in advance: it is found on a text, and gives each layer a share of its rows. The
 * heads of a layer keep equally many rows. */
#include "base/buf.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "recipe/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_SINK = 4, /* the first rows have large scores in all layers, and stay in any case */
    STEP = 5    /* shares are multiples of so many per cent, or 1 % */
};

struct scored {
    float score;
    int32_t layer;
};

struct scores {
    struct lk_ledger ledger;
    struct scored *at; /* [n], of `bytes` */
    size_t *of_layer;  /* [n_layer] how many are of each layer, then those among the first */
    size_t n_layer, n, bytes;
};

/* Progress of one chunk and its replay as progress of all chunks. */
struct chunks {
    const lk_budget_opts *opts;
    uint64_t done, total;
};

static bool chunk_progress(void *user, uint64_t done, uint64_t total) {
    const struct chunks *c = user;
    uint64_t tokens = (uint64_t)((double)done / (double)total * (double)c->opts->chunk);
    return !c->opts->progress || c->opts->progress(c->opts->user, c->done + tokens, c->total);
}

/* Append the scores of a session that keeps all rows, but of no layer with a sliding window: the
 * window limits its rows. */
static lk_status add_scores(struct scores *s, const lk_session *session, lk_err *err) {
    size_t more = 0;
    for (size_t layer = 0; layer < s->n_layer; layer++) {
        const struct lk_evict *evict = &session->cache->evict[layer];
        more += (size_t)(evict->n * evict->n_head) * sizeof *s->at;
    }
    if (!lk_grow(&s->ledger, LK_FOR_SCRATCH, (void **)&s->at, s->bytes, s->bytes + more))
        return lk_fail(err, LK_E_NOMEM, "out of memory for the scores of rows");
    s->bytes += more;
    for (size_t layer = 0; layer < s->n_layer; layer++) {
        const struct lk_evict *evict = &session->cache->evict[layer];
        if (session->cache->kv[layer][LK_K].n_swa > 0) continue;
        for (int64_t i = 0; i < evict->n * evict->n_head; i++)
            if (evict->pos[i] >= N_SINK && evict->score[i] < LK_NOT_REPLAYED)
                s->at[s->n++] = (struct scored){evict->score[i], (int32_t)layer};
    }
    return LK_OK;
}

/* Highest score first, then the first layer. */
static int compare_scores(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static lk_status measure(struct scores *s, lk_model *model, const int32_t *tok, size_t n_tok,
                         const lk_budget_opts *opts, lk_err *err) {
    size_t chunk = (size_t)opts->chunk, n_chunk = n_tok / chunk;
    struct chunks c = {opts, 0, n_chunk * chunk};
    lk_session_opts session_opts = {.n_ctx = opts->chunk, .progress = chunk_progress, .user = &c};
    lk_recipe *all = NULL;
    lk_status status = lk_recipe_parse(&all, "keep 100% by replay: f16; window 1: f16", err);
    for (size_t i = 0; !status && i < n_chunk; i++, c.done += chunk) {
        lk_session *session = NULL;
        status = lk_session_new(&session, model, all, &session_opts, err);
        if (!status) status = lk_session_sync(session, tok + i * chunk, chunk, NULL, err);
        if (!status) status = add_scores(s, session, err);
        lk_session_free(session);
    }
    lk_recipe_free(all);
    if (!status) qsort(s->at, s->n, sizeof *s->at, compare_scores);
    return status;
}

/* Find the shares of the layers in per cent if `percent` of all rows stay. share: [n_layer]; 0: as
 * the recipe says for all layers. */
static void find_shares(const struct scores *s, int percent, int *share) {
    size_t n_first = s->n * (size_t)percent / 100, *all = s->of_layer, *first = all + s->n_layer;
    memset(s->of_layer, 0, 2 * s->n_layer * sizeof *s->of_layer);
    for (size_t i = 0; i < s->n; i++) {
        all[s->at[i].layer]++;
        if (i < n_first) first[s->at[i].layer]++;
    }
    for (size_t layer = 0; layer < s->n_layer; layer++) {
        share[layer] = 0;
        if (all[layer] == 0) continue;
        share[layer] = STEP * (int)lround(100.0 / STEP * (double)first[layer] / (double)all[layer]);
        if (share[layer] == 0) share[layer] = 1;
    }
}

/* The part of a recipe that begins with "keep", and its codecs after "replay". */
struct keep {
    const char *end, *codecs;
};

static struct keep find_keep(const char *text) {
    const char *at = strstr(text, "keep"), *replay = strstr(at, "replay");
    return (struct keep){at + strcspn(at, ";"), replay + strlen("replay")};
}

/* Write `like` with the shares of the layers. */
static void write_text(struct lk_buf *out, const char *like, const int *share, size_t n_layer) {
    struct keep keep = find_keep(like);
    lk_buf_clear(out);
    lk_buf_append(out, like, (size_t)(keep.end - like));
    for (int percent = 1; percent <= 100; percent++) {
        int n = 0;
        for (size_t layer = 0; layer < n_layer; layer++)
            if (share[layer] == percent) lk_buf_printf(out, n++ ? ",%zu" : "; layers %zu", layer);
        if (n > 0)
            lk_buf_printf(out, ": keep %d%% by replay%.*s", percent, (int)(keep.end - keep.codecs),
                          keep.codecs);
    }
    lk_buf_append_str(out, keep.end);
}

/* The largest shares whose cache has at most the bytes of `like`. */
static lk_status solve(const struct scores *s, const lk_model *model, const lk_recipe *like,
                       int32_t n_ctx, int *share, lk_recipe **out, lk_err *err) {
    lk_session_opts opts = {.n_ctx = n_ctx};
    struct lk_buf text = {0};
    lk_plan limit, plan = {.cache_bytes = UINT64_MAX};
    lk_status status = lk_plan_make(model, like, &opts, &limit, err);
    for (int percent = 100; !status && plan.cache_bytes > limit.cache_bytes; percent--) {
        lk_recipe_free(*out);
        *out = NULL;
        if (percent == 0) {
            status =
                lk_fail(err, LK_E_ARG, "no shares of the layers have the size of '%s'", like->text);
            break;
        }
        find_shares(s, percent, share);
        write_text(&text, like->text, share, s->n_layer);
        status = text.failed ? lk_fail(err, LK_E_NOMEM, "out of memory for a recipe")
                             : lk_recipe_parse(out, text.at, err);
        if (!status) status = lk_plan_make(model, *out, &opts, &plan, err);
    }
    lk_buf_free(&text);
    return status;
}

/* Does the recipe keep a percentage by replay, equally in all layers? */
static bool has_one_share(const lk_recipe *recipe) {
    for (int i = 0; i < recipe->n_level && recipe->n_override == 0; i++) {
        const struct lk_limit *limit = &recipe->level[i].limit;
        if (limit->policy.kind == LK_POLICY_REPLAY && limit->percent > 0 && !limit->of_context)
            return true;
    }
    return false;
}

lk_status lk_tune_budgets(lk_recipe **out, lk_model *model, const lk_recipe *like,
                          const int32_t *tok, size_t n_tok, const lk_budget_opts *opts,
                          lk_err *err) {
    struct scores s = {.n_layer = (size_t)lk_model_get_info(model).n_cached};
    *out = NULL;
    if (!has_one_share(like))
        return lk_fail(err, LK_E_ARG,
                       "'%s' must have 'keep N%% by replay', and no parts for layers or heads",
                       like->text);
    if (opts->chunk < 2 * N_SINK)
        return lk_fail(err, LK_E_ARG, "a chunk has %d tokens, less than %d", (int)opts->chunk,
                       2 * N_SINK);
    if (n_tok < (size_t)opts->chunk)
        return lk_fail(err, LK_E_ARG, "the text has %zu tokens, less than one chunk of %d", n_tok,
                       (int)opts->chunk);
    size_t shares = s.n_layer * sizeof(int), counts = 2 * s.n_layer * sizeof *s.of_layer;
    int *share = lk_alloc(&s.ledger, LK_FOR_SCRATCH, shares);
    s.of_layer = lk_alloc(&s.ledger, LK_FOR_SCRATCH, counts);
    lk_status status = share && s.of_layer
                           ? measure(&s, model, tok, n_tok, opts, err)
                           : lk_fail(err, LK_E_NOMEM, "out of memory for shares of layers");
    if (!status)
        status = solve(&s, model, like, opts->n_ctx ? opts->n_ctx : opts->chunk, share, out, err);
    if (status) {
        lk_recipe_free(*out);
        *out = NULL;
    }
    lk_release(&s.ledger, LK_FOR_SCRATCH, share, shares);
    lk_release(&s.ledger, LK_FOR_SCRATCH, s.at, s.bytes);
    lk_release(&s.ledger, LK_FOR_SCRATCH, s.of_layer, counts);
    return status;
}
