/* Measures recipes in groups. */
#include "tune/measure_set.h"

#include "base/err.h"
#include "base/hash.h"
#include "tune/prompts.h"

#include <string.h>

enum { MAX_GROUP = 32 };

struct lk_measure_text lk_measure_text_of(const int32_t *tok, size_t n_tok, int32_t chunk,
                                          int32_t n_scored, bool prompt) {
    struct lk_measure_text text = {
        .tok = tok, .n_tok = n_tok, .chunk = chunk, .n_scored = n_scored, .prompt = prompt};
    const int32_t how[3] = {chunk, prompt, n_scored};
    text.n_tok -= n_tok % (size_t)chunk;
    text.id = lk_fnv1a(LK_FNV1A_INIT, how, sizeof how);
    text.id = lk_fnv1a(text.id, tok, text.n_tok * sizeof *tok);
    return text;
}

/* Recipes of one lk_compare, and where its progress starts. */
struct group {
    const struct lk_measure *m;
    lk_recipe *recipe[MAX_GROUP];
    const char *text[MAX_GROUP];
    size_t n;
    uint64_t done, total; /* recipes x tokens, of the whole set */
};

static bool group_progress(void *user, uint64_t done, uint64_t total) {
    const struct group *g = user;
    uint64_t share = total ? done * g->n / (g->n + 1) : 0; /* the full cache is not counted */
    return !g->m->progress || g->m->progress(g->m->user, g->done + share, g->total);
}

/* The number of recipes in a group: as many as fit max_bytes, with the full cache. */
static lk_status find_group_size(const struct lk_measure *m, int32_t chunk, size_t *n,
                                 lk_err *err) {
    enum { STEP = 32 };
    lk_recipe *f16 = NULL;
    lk_plan plan;
    lk_session_opts opts = {.n_ctx = chunk};
    lk_status status = lk_recipe_parse(&f16, "f16", err);
    if (!status) status = lk_plan_make(m->model, f16, &opts, &plan, err);
    lk_recipe_free(f16);
    if (status) return status;
    uint64_t logits = (uint64_t)STEP * lk_model_get_info(m->model).n_vocab * sizeof(float);
    uint64_t fit = m->max_bytes / (plan.cache_bytes + plan.scratch_bytes + logits);
    *n = fit > MAX_GROUP + 1 ? MAX_GROUP : fit > 2 ? (size_t)fit - 1 : 1;
    return LK_OK;
}

static bool is_in_group(const struct group *g, const char *text) {
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->text[i], text) == 0) return true;
    return false;
}

static lk_status measure_group(struct group *g, const struct lk_measure_text *text, lk_err *err) {
    lk_compare_result result[MAX_GROUP];
    lk_compare_opts opts = {.n_ctx = text->chunk,
                            .n_scored = text->n_scored,
                            .prompt = text->prompt,
                            .progress = group_progress,
                            .user = g};
    if (g->n == 0) return LK_OK;
    lk_status status = lk_compare(g->m->model, (const lk_recipe *const *)g->recipe, g->n, text->tok,
                                  text->n_tok, &opts, result, err);
    for (size_t i = 0; !status && i < g->n; i++)
        status = lk_tune_log_add(g->m->log, text->id, g->text[i], &result[i], err);
    return status ? status : lk_tune_log_save(g->m->log, err);
}

/* Measure a recipe with prompts that are held. */
static lk_status measure_held(const struct lk_measure *m, const lk_recipe *recipe, const char *name,
                              uint64_t done, uint64_t total, lk_err *err) {
    lk_compare_result result;
    m->prompts->done = done;
    m->prompts->total = total;
    lk_status status = lk_prompts_measure(m->prompts, recipe, &result, err);
    if (!status) status = lk_tune_log_add(m->log, m->prompts->id, name, &result, err);
    return status ? status : lk_tune_log_save(m->log, err);
}

static void empty_group(struct group *g, uint64_t n_tok) {
    g->done += g->n * n_tok;
    for (size_t i = 0; i < g->n; i++) lk_recipe_free(g->recipe[i]);
    g->n = 0;
}

lk_status lk_measure_set(const struct lk_measure *m, const struct lk_measure_text *text,
                         const struct lk_buf *recipe, size_t n, lk_err *err) {
    struct group g = {.m = m, .total = (uint64_t)n * text->n_tok};
    size_t max_group = 1;
    lk_status status = find_group_size(m, text->chunk, &max_group, err);
    for (size_t i = 0; !status && i < n; i++) {
        if (recipe[i].failed || !recipe[i].at)
            status = lk_fail(err, LK_E_NOMEM, "no memory for a recipe");
        if (status) break;
        if (lk_tune_log_find(m->log, text->id, recipe[i].at) || is_in_group(&g, recipe[i].at)) {
            g.done += text->n_tok;
            continue;
        }
        status = lk_recipe_parse(&g.recipe[g.n], recipe[i].at, err);
        if (status) break;
        if (m->prompts && m->prompts->id == text->id) {
            status = measure_held(m, g.recipe[g.n], recipe[i].at, g.done, g.total, err);
            if (status != LK_E_UNSUPPORTED) {
                lk_recipe_free(g.recipe[g.n]);
                g.done += text->n_tok;
                continue;
            }
            status = LK_OK;
        }
        g.text[g.n++] = recipe[i].at;
        if (g.n < max_group) continue;
        status = measure_group(&g, text, err);
        empty_group(&g, text->n_tok);
    }
    if (!status) status = measure_group(&g, text, err);
    empty_group(&g, text->n_tok);
    return status;
}

struct lk_measure lk_tune_measure_of(struct lk_tune *t) {
    return (struct lk_measure){.model = t->model,
                               .log = &t->log,
                               .max_bytes = t->opts.max_bytes,
                               .progress = t->opts.progress,
                               .user = t->opts.user,
                               .prompts = t->prompts};
}

lk_status lk_tune_hold(struct lk_tune *t, lk_err *err) {
    struct lk_measure measure = lk_tune_measure_of(t);
    return t->prompts ? LK_OK : lk_prompts_new(&t->prompts, &measure, &t->recipes, t->bits[0], err);
}

double lk_tune_measured_kl(const struct lk_tune *t, const struct lk_measure_text *text,
                           const struct lk_buf *recipe) {
    return lk_tune_log_find(&t->log, text->id, lk_buf_cstr(recipe))->kl_mean;
}
