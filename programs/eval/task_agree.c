/* agree: how long a greedy continuation stays the full cache's own, and how much of its words it shares.
 *
 * Items are excerpts of the text, evenly spread over it; each is read as a prompt and continued. */
#include "eval/rouge.h"
#include "eval/tasks.h"

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
    COST_OF_GENERATED = 8
};

struct agree {
    int32_t *tok; /* whole text; its begin token, if it has one, begins every prompt */
    size_t n_tok, n_begin, n_prompt, n_generate, n_item;
};

static void close_agree(void *state) {
    struct agree *a = state;
    free(a->tok);
    free(a);
}

static lk_status fill(const struct lk_task_env *env, struct agree *a, size_t n_ctx, lk_err *err) {
    int32_t *begin;
    lk_status status = lk_task_tokenize(env->model, "", 0, &begin, &a->n_begin, err);
    if (status != LK_OK) return status;
    free(begin);
    status =
        lk_task_tokenize(env->model, env->opts->text, env->opts->text_len, &a->tok, &a->n_tok, err);
    if (status != LK_OK) return status;
    if (a->n_tok < n_ctx)
        return lk_fail(err, LK_E_ARG,
                       "agree: %s has %zu tokens, fewer than the context of %zu; give a longer "
                       "text or a smaller -c",
                       env->opts->text_path, a->n_tok, n_ctx);
    a->n_prompt = n_ctx - a->n_generate;
    a->n_item = lk_task_limit(env, a->n_tok / n_ctx, ITEMS, ITEMS_QUICK);
    return LK_OK;
}

static lk_status open_agree(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err) {
    lk_status status = lk_task_need_text(env, err);
    if (status != LK_OK) return status;
    size_t n_ctx = env->opts->n_ctx ? (size_t)env->opts->n_ctx : env->opts->quick ? CTX_QUICK : CTX;
    size_t n_generate = env->opts->quick ? GENERATE_QUICK : GENERATE;
    if (n_ctx < 2 * n_generate)
        return lk_fail(err, LK_E_ARG,
                       "agree: a context of %zu tokens has no room for %zu generated ones; give at "
                       "least -c %zu",
                       n_ctx, n_generate, 2 * n_generate);
    struct agree *a = calloc(1, sizeof *a);
    if (!a) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    a->n_generate = n_generate;
    status = fill(env, a, n_ctx, err);
    if (status != LK_OK)
        close_agree(a);
    else
        *set = (struct lk_task_set){a, a->n_item, (int32_t)n_ctx};
    return status;
}

/* Where the excerpt of item i begins in the text. Excerpts lie side by side, whatever the limit, so that
 * items of a shorter run are items of a longer one. */
static size_t start_of(const struct agree *a, size_t i) {
    return a->n_begin + i * (a->n_prompt + a->n_generate);
}

static void key_agree(const void *state, size_t i, char *key, size_t cap) {
    const struct agree *a = state;
    snprintf(key, cap, "%zu tokens from %zu, %zu generated", a->n_prompt, start_of(a, i),
             a->n_generate);
}

static double cost_agree(const void *state, size_t i) {
    (void)i;
    const struct agree *a = state;
    return (double)(a->n_prompt + COST_OF_GENERATED * a->n_generate);
}

/* Fields that compare a generation with the full cache's. */
static lk_status compare(const json_t *full, const json_t *tokens, const char *text, json_t *record,
                         lk_err *err) {
    const json_t *expect = json_object_get(full, "tokens");
    const char *reference = json_string_value(json_object_get(full, "text"));
    size_t n = json_array_size(expect), got = json_array_size(tokens), same = 0;
    if (!expect || !reference)
        return lk_fail(err, LK_E_FORMAT, "the full cache's record is damaged; give another -o");
    while (same < n && same < got &&
           json_integer_value(json_array_get(expect, same)) ==
               json_integer_value(json_array_get(tokens, same)))
        same++;
    struct lk_rouge rouge;
    lk_status status = lk_rouge(reference, text, &rouge, err);
    if (status != LK_OK) return status;
    bool identical = same == n && same == got;
    json_object_set_new(record, "prefix", json_integer((json_int_t)same));
    json_object_set_new(record, "prefix_share",
                        json_real(identical ? 1.0 : (double)same / (double)(n > got ? n : got)));
    json_object_set_new(record, "identical", json_boolean(identical));
    json_object_set_new(record, "rouge_l", json_real(identical ? 1.0 : rouge.l.f));
    return LK_OK;
}

/* A text that JSON can hold: a token may end within a character. */
static json_t *json_text(const char *text) {
    json_t *string = json_string(text);
    char *copy = string ? NULL : malloc(strlen(text) + 1);
    if (!copy) return string;
    size_t n = 0;
    for (const char *c = text; *c; c++) copy[n++] = (unsigned char)*c < 0x80 ? *c : '?';
    copy[n] = 0;
    string = json_string(copy);
    free(copy);
    return string;
}

static lk_status prompt_agree(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct agree *a = state;
    *tok = malloc(a->n_prompt * sizeof **tok);
    if (!*tok) return lk_fail(err, LK_E_NOMEM, "no memory for a prompt");
    memcpy(*tok, a->tok, a->n_begin * sizeof **tok);
    memcpy(*tok + a->n_begin, a->tok + start_of(a, i), (a->n_prompt - a->n_begin) * sizeof **tok);
    *n = a->n_prompt;
    return LK_OK;
}

static lk_status run_agree(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                           json_t *record, lk_err *err) {
    struct agree *a = state;
    int32_t *out = malloc(a->n_generate * sizeof *out);
    size_t n = 0;
    (void)i;
    if (!out) return lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    lk_status status = lk_subject_generate(subject, a->n_generate, NULL, out, &n, err);
    json_t *tokens = json_array();
    for (size_t t = 0; status == LK_OK && t < n; t++)
        json_array_append_new(tokens, json_integer(out[t]));
    char *text = status == LK_OK ? lk_task_detokenize(subject->model, out, n) : NULL;
    if (status == LK_OK && (!tokens || !text))
        status = lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    if (status == LK_OK) {
        json_object_set(record, "tokens", tokens);
        json_object_set_new(record, "text", json_text(text));
        if (full)
            status = compare(full, tokens, json_string_value(json_object_get(record, "text")),
                             record, err);
    }
    json_decref(tokens);
    free(text);
    free(out);
    return status;
}

static lk_status summarise_agree(const void *state, const json_t *records, const json_t *full,
                                 struct lk_result *result, lk_err *err) {
    (void)state;
    if (full) {
        lk_metric_mean(result, "prefix_share", records, "prefix_share");
        lk_metric_mean(result, "prefix_tokens", records, "prefix");
        lk_metric_mean(result, "identical", records, "identical");
        lk_metric_mean(result, "rouge_l", records, "rouge_l");
    }
    return lk_result_check(result, err);
}

const struct lk_task lk_task_agree = {
    .name = "agree",
    .summary = "greedy continuations of --text against the full cache's",
    .wants_floor = true,
    .open = open_agree,
    .close = close_agree,
    .key = key_agree,
    .cost = cost_agree,
    .prompt = prompt_agree,
    .run = run_agree,
    .summarise = summarise_agree,
};
