/* Runs items on a backend, records the outcome, and summarizes records. */
#include "eval/question.h"

#include "base/ledger.h"
#include "eval/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct question_items {
    struct lk_ledger ledger;
    struct lk_prompt_format format;
    struct lk_items items;
    size_t min_answer; /* tokens */
};

static size_t question_n_ctx(const struct lk_task_env *env) {
    const struct lk_question_kind *kind = env->task->arg;
    size_t trained = (size_t)lk_model_get_info(env->model).n_ctx_train;
    size_t n_ctx = lk_task_n_ctx(env, (size_t)kind->n_ctx, (size_t)kind->n_ctx_quick);
    return env->opts->n_ctx > 0 || n_ctx < trained ? n_ctx : trained;
}

lk_status lk_question_open(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err) {
    const struct lk_question_kind *kind = env->task->arg;
    struct question_items *q = calloc(1, sizeof *q);
    if (!q) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    q->items.arena.ledger = &q->ledger;
    q->min_answer = env->opts->min_answer;
    q->format = lk_prompt_format_of(env->model);
    q->format.chat &= !env->opts->plain;
    struct lk_items_opts opts = {.env = env, .format = q->format, .n_ctx = question_n_ctx(env)};
    lk_status status = kind->make(&opts, &q->items, err);
    if (status) {
        lk_question_close(q);
        return status;
    }
    *out = (struct lk_open_task){.state = q, .n_item = q->items.n, .n_ctx = (int32_t)opts.n_ctx};
    return LK_OK;
}

void lk_question_close(void *state) {
    struct question_items *q = state;
    if (!q) return;
    lk_arena_free(&q->items.arena);
    free(q);
}

void lk_question_key(const void *state, size_t i, char *key, size_t cap) {
    snprintf(key, cap, "%s", ((const struct question_items *)state)->items.item[i].key);
}

double lk_question_cost(const void *state, size_t i) {
    enum { BYTES_PER_TOKEN = 4 };
    const struct lk_item *item = &((const struct question_items *)state)->items.item[i];
    size_t bytes = strlen(item->question) + (item->context ? strlen(item->context) : 0);
    for (size_t s = 0; s < item->n_shot; s++)
        bytes += strlen(item->shot[s].question) + strlen(item->shot[s].answer);
    return (double)bytes / BYTES_PER_TOKEN + (double)(LK_GENERATED_TOKEN_COST * item->n_generate);
}

/* ---- running an item ---- */

lk_status lk_question_prompt(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct question_items *q = state;
    struct lk_item_tokens t;
    lk_status status = lk_item_tokenize(&q->format, &q->items.item[i], &t, err);
    if (status) return status;
    *tok = t.tok;
    *n = t.n_head;
    return LK_OK;
}

/* Prefill the item's head and evaluate its tail through the cache. */
static lk_status evaluate_question(struct lk_backend *backend, const struct lk_item_tokens *t,
                                   lk_err *err) {
    lk_status status = lk_backend_prefill(backend, t->tok, t->n_head, err);
    return status ? status : lk_backend_eval(backend, t->tok + t->n_head, t->n_tail, false, err);
}

/* After evaluate_question: -log p per token of the right answer, in nats, evaluated token by token
 * like decode. *greedy: whether a greedy answer starts with the right one. */
static lk_status measure_answer_nll(struct lk_backend *backend, const struct lk_item_tokens *t,
                                    double *nll, bool *greedy, lk_err *err) {
    const int32_t *answer = t->tok + t->n_head + t->n_tail;
    size_t room = (size_t)backend->n_ctx - t->n_head - t->n_tail,
           n = t->n_answer < room ? t->n_answer : room;
    double sum = 0;
    *greedy = n == t->n_answer;
    for (size_t i = 0; i < n; i++) {
        const float *logits = lk_backend_logits(backend, -1);
        sum += lk_token_nll(logits, backend->n_vocab, answer[i]);
        *greedy &= lk_argmax_token(logits, backend->n_vocab) == answer[i];
        lk_status status = i + 1 < n ? lk_backend_eval(backend, answer + i, 1, false, err) : LK_OK;
        if (status) return status;
    }
    *nll = n ? sum / (double)n : NAN;
    return LK_OK;
}

/* After evaluate_question: a greedy answer as text. Owned: free(). */
static lk_status generate_answer(struct lk_backend *backend, const struct lk_item *item,
                                 const struct lk_item_tokens *t, size_t min_tok, char **text,
                                 lk_err *err) {
    size_t room = (size_t)backend->n_ctx - t->n_head - t->n_tail,
           max_tok = item->n_generate < room ? item->n_generate : room, n = 0;
    int32_t *tok = calloc(max_tok + 1, sizeof *tok);
    if (!tok) return lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    lk_status status = lk_backend_generate(backend, min_tok, max_tok, item->stop, tok, &n, err);
    if (!status && !(*text = lk_task_detokenize(backend->model, tok, n)))
        status = lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    free(tok);
    return status;
}

/* Add the fields that describe the item to its record. */
static lk_status record_item(const struct question_items *q, const struct lk_item *item,
                             const struct lk_item_tokens *t, json_t *record, lk_err *err) {
    int failed =
        json_object_set_new(record, "prompt", json_string(q->format.chat ? "chat" : "plain"));
    failed |= json_object_set_new(record, "n_head", json_integer((json_int_t)t->n_head));
    failed |= json_object_set_new(record, "n_tail", json_integer((json_int_t)t->n_tail));
    if (item->part) failed |= json_object_set_new(record, "part", json_string(item->part));
    if (item->length > 0) failed |= json_object_set_new(record, "length", json_real(item->length));
    if (item->depth >= 0)
        failed |= json_object_set_new(record, "depth", json_real(100 * item->depth));
    return failed ? lk_fail(err, LK_E_NOMEM, "no memory for a record") : LK_OK;
}

static lk_status record_scores(const struct lk_item *item, const char *text, double nll,
                               json_t *record, lk_err *err) {
    int failed = json_object_set_new(record, "answer", json_string(text));
    failed |= json_object_set_new(record, "score", json_real(lk_item_score(item, text)));
    if (isfinite(nll)) failed |= json_object_set_new(record, "nll", json_real(nll));
    return failed ? lk_fail(err, LK_E_NOMEM, "no memory for a record") : LK_OK;
}

/* Whether the score is known without generating: a greedy answer would start with the right one,
 * and the task looks for it anywhere in the text. */
static bool is_answered(const struct lk_item *item, bool greedy) { return greedy && item->answer; }

lk_status lk_question_run(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                          json_t *record, lk_err *err) {
    (void)full;
    const struct question_items *q = state;
    const struct lk_item *item = &q->items.item[i];
    struct lk_item_tokens t;
    double nll = NAN;
    bool greedy = false;
    char *text = NULL;
    lk_status status = lk_item_tokenize(&q->format, item, &t, err);
    if (status) return status;
    if (t.n_head + t.n_tail >= (size_t)backend->n_ctx)
        status = lk_fail(err, LK_E_FULL, "%zu tokens leave no room for an answer; give a larger -c",
                         t.n_head + t.n_tail);
    if (!status) status = evaluate_question(backend, &t, err);
    if (!status && t.n_answer) status = lk_backend_save(backend, err);
    if (!status && t.n_answer) status = measure_answer_nll(backend, &t, &nll, &greedy, err);
    bool answered = is_answered(item, greedy);
    if (!status && t.n_answer && !answered) status = lk_backend_restore(backend, err);
    if (!status && !answered)
        status = generate_answer(backend, item, &t, q->min_answer, &text, err);
    if (!status) status = record_item(q, item, &t, record, err);
    if (!status) status = record_scores(item, answered ? item->answer : text, nll, record, err);
    free(text);
    lk_item_tokens_free(&t);
    return status;
}

/* ---- results ---- */

/* The records of one part, or all of them if `part` is NULL. Owned. */
static json_t *records_of_part(const json_t *records, const char *part) {
    json_t *out = json_array();
    for (size_t i = 0; out && i < json_array_size(records); i++) {
        json_t *record = json_array_get(records, i);
        const char *name = json_string_value(json_object_get(record, "part"));
        if (!part || (name && strcmp(name, part) == 0)) json_array_append(out, record);
    }
    return out;
}

/* Add the mean of the differences to the full cache per item, and its standard error. Both answered
 * the same items, so this error is much smaller than that of either mean. */
static void add_change(struct lk_task_result *result, const char *name, const json_t *records,
                       const json_t *full, const char *field) {
    double sum = 0, sum2 = 0;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(records) && i < json_array_size(full); i++) {
        double change = lk_record_number(json_array_get(records, i), field) -
                        lk_record_number(json_array_get(full, i), field);
        if (!isfinite(change)) continue;
        sum += change;
        sum2 += change * change;
        n++;
    }
    if (n) lk_add_metric(result, name, sum / (double)n, lk_standard_error(sum, sum2, (double)n), n);
}

static bool any_record_has(const json_t *records, const char *field) {
    for (size_t i = 0; i < json_array_size(records); i++)
        if (isfinite(lk_record_number(json_array_get(records, i), field))) return true;
    return false;
}

/* Add mean, change, series and heat map of one field of the records of one part. */
static void add_field_results(struct lk_task_result *result, const json_t *records,
                              const json_t *full, const char *part, const char *field) {
    char name[128], change[160], series[160];
    if (!any_record_has(records, field)) return;
    snprintf(name, sizeof name, "%s%s%s", field, part ? "_" : "", part ? part : "");
    snprintf(change, sizeof change, "%s_change", name);
    snprintf(series, sizeof series, "%s_by_length", name);
    lk_add_mean(result, name, records, field);
    if (full && any_record_has(full, field)) add_change(result, change, records, full, field);
    if (any_record_has(records, "length"))
        lk_add_mean_series(result, series, "length (tokens)", field, records, "length", field);
    if (any_record_has(records, "depth"))
        lk_add_mean_heat(result, name, "length (tokens)", "depth (%)", records, "length", "depth",
                         field);
}

static void add_part_results(struct lk_task_result *result, const json_t *records,
                             const json_t *full, const char *part) {
    static const char *const field[] = {"score", "nll"};
    json_t *part_records = records_of_part(records, part),
           *part_full = full ? records_of_part(full, part) : NULL;
    if (!part_records || (full && !part_full)) result->failed = true;
    for (size_t f = 0; !result->failed && f < sizeof field / sizeof field[0]; f++)
        add_field_results(result, part_records, part_full, part, field[f]);
    json_decref(part_records);
    json_decref(part_full);
}

/* Whether item i is the first of its part. */
static bool is_first_of_part(const struct lk_items *items, size_t i) {
    for (size_t j = 0; j < i; j++)
        if (items->item[j].part && strcmp(items->item[j].part, items->item[i].part) == 0)
            return false;
    return true;
}

lk_status lk_question_summarize(const void *state, const json_t *records, const json_t *full,
                                struct lk_task_result *result, lk_err *err) {
    const struct lk_items *items = &((const struct question_items *)state)->items;
    size_t n_part = 0;
    const char *part[16];
    for (size_t i = 0; i < items->n; i++)
        if (items->item[i].part && is_first_of_part(items, i) &&
            n_part < sizeof part / sizeof part[0])
            part[n_part++] = items->item[i].part;
    add_part_results(result, records, full, NULL);
    for (size_t p = 0; n_part > 1 && p < n_part; p++)
        add_part_results(result, records, full, part[p]);
    return lk_task_result_check(result, err);
}
