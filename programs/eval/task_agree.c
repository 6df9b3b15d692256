/* Task `agree`: how long a greedy continuation is identical to the full cache's.
 *
 * Items are consecutive excerpts of the text. Each is prefilled as a prompt and continued. */
#include "eval/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CTX = 2048,
    CTX_QUICK = 1024,
    GENERATE = 128,
    GENERATE_QUICK = 64,
    ITEMS = 16,
    ITEMS_QUICK = 4,
};

struct agree_task {
    int32_t *tok; /* the whole text; its BOS token, if any, starts every prompt */
    size_t n_tok, n_bos, n_prompt, n_item;
    size_t n_generate, n_least; /* tokens of a continuation, at most and at least */
};

static void close_agree(void *state) {
    struct agree_task *a = state;
    free(a->tok);
    free(a);
}

static lk_status open_agree(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err) {
    lk_status status = lk_task_require_text(env, err);
    if (status) return status;
    size_t n_ctx = lk_task_n_ctx(env, CTX, CTX_QUICK);
    size_t n_generate = env->opts->quick ? GENERATE_QUICK : GENERATE;
    if (n_generate < env->opts->min_answer) n_generate = env->opts->min_answer;
    if (n_ctx < 2 * n_generate)
        return lk_fail(err, LK_E_ARG,
                       "agree: a context of %zu tokens has no room for %zu generated ones; give at "
                       "least -c %zu",
                       n_ctx, n_generate, 2 * n_generate);
    struct agree_task *a = calloc(1, sizeof *a);
    if (!a) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    int32_t *bos = NULL;
    status = lk_task_tokenize(env->model, "", 0, &bos, &a->n_bos, err);
    free(bos);
    if (!status)
        status = lk_task_tokenize_text(env->opts, env->model, n_ctx, &a->tok, &a->n_tok, err);
    if (status) {
        close_agree(a);
        return status;
    }
    a->n_generate = n_generate;
    a->n_least = env->opts->min_answer;
    a->n_prompt = n_ctx - n_generate;
    a->n_item = lk_task_limit(env, a->n_tok / n_ctx, ITEMS, ITEMS_QUICK);
    *out = (struct lk_open_task){a, a->n_item, (int32_t)n_ctx};
    return LK_OK;
}

/* Start of the excerpt of item i in the text. Excerpts are adjacent, whatever the limit, so the
 * items of a shorter run are also items of a longer one. */
static size_t excerpt_start(const struct agree_task *a, size_t i) {
    return a->n_bos + i * (a->n_prompt + a->n_generate);
}

static void key_agree(const void *state, size_t i, char *key, size_t cap) {
    const struct agree_task *a = state;
    snprintf(key, cap, "%zu tokens from %zu, %zu generated", a->n_prompt, excerpt_start(a, i),
             a->n_generate);
}

static double cost_agree(const void *state, size_t i) {
    (void)i;
    const struct agree_task *a = state;
    return (double)(a->n_prompt + LK_GENERATED_TOKEN_COST * a->n_generate);
}

/* Add the fields that compare a continuation with the full cache's. */
static lk_status compare_with_full(const json_t *full, const json_t *tokens, json_t *record,
                                   lk_err *err) {
    const json_t *expect = json_object_get(full, "tokens");
    size_t n = json_array_size(expect), got = json_array_size(tokens), same = 0;
    if (!expect)
        return lk_fail(err, LK_E_FORMAT,
                       "the record of the full cache is damaged; give another -o");
    while (same < n && same < got &&
           json_integer_value(json_array_get(expect, same)) ==
               json_integer_value(json_array_get(tokens, same)))
        same++;
    bool identical = same == n && same == got;
    json_object_set_new(record, "prefix", json_integer((json_int_t)same));
    json_object_set_new(record, "prefix_share",
                        json_real(identical ? 1.0 : (double)same / (double)(n > got ? n : got)));
    json_object_set_new(record, "identical", json_boolean(identical));
    return LK_OK;
}

static lk_status prompt_agree(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct agree_task *a = state;
    *tok = malloc(a->n_prompt * sizeof **tok);
    if (!*tok) return lk_fail(err, LK_E_NOMEM, "no memory for a prompt");
    memcpy(*tok, a->tok, a->n_bos * sizeof **tok);
    memcpy(*tok + a->n_bos, a->tok + excerpt_start(a, i), (a->n_prompt - a->n_bos) * sizeof **tok);
    *n = a->n_prompt;
    return LK_OK;
}

static lk_status run_agree(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                           json_t *record, lk_err *err) {
    struct agree_task *a = state;
    int32_t *out = malloc(a->n_generate * sizeof *out);
    size_t n = 0;
    (void)i;
    if (!out) return lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    lk_status status = lk_backend_generate(backend, a->n_least, a->n_generate, NULL, out, &n, err);
    json_t *tokens = json_array();
    for (size_t t = 0; !status && t < n; t++) json_array_append_new(tokens, json_integer(out[t]));
    char *text = status ? NULL : lk_task_detokenize(backend->model, out, n);
    if (!status && (!tokens || !text)) status = lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    if (!status) {
        json_object_set(record, "tokens", tokens);
        json_object_set_new(record, "text", json_string(text));
        if (full) status = compare_with_full(full, tokens, record, err);
    }
    json_decref(tokens);
    free(text);
    free(out);
    return status;
}

static lk_status summarize_agree(const void *state, const json_t *records, const json_t *full,
                                 struct lk_task_result *result, lk_err *err) {
    (void)state;
    if (full) {
        lk_add_mean(result, "prefix_share", records, "prefix_share");
        lk_add_mean(result, "prefix_tokens", records, "prefix");
        lk_add_mean(result, "identical", records, "identical");
    }
    return lk_task_result_check(result, err);
}

const struct lk_task lk_task_agree = {
    .name = "agree",
    .summary = "greedy continuations of --text, compared with the full cache",
    .has_noise_floor = true,
    .open = open_agree,
    .close = close_agree,
    .key = key_agree,
    .cost = cost_agree,
    .prompt = prompt_agree,
    .run = run_agree,
    .summarize = summarize_agree,
};
