#include "eval/question.h"

#include "base/ledger.h"
#include "eval/rouge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct questions {
    struct lk_ledger ledger;
    struct lk_reader reader;
    struct lk_items items;
};

static size_t context_of(const struct lk_task_env *env) {
    const struct lk_question_kind *kind = env->task->arg;
    int32_t usual = env->opts->quick ? kind->n_ctx_quick : kind->n_ctx,
            trained = lk_model_get_info(env->model).n_ctx_train;
    if (env->opts->n_ctx > 0) return (size_t)env->opts->n_ctx;
    return (size_t)(usual < trained ? usual : trained);
}

lk_status lk_question_open(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err) {
    const struct lk_question_kind *kind = env->task->arg;
    struct questions *q = calloc(1, sizeof *q);
    if (!q) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    q->items.arena.ledger = &q->ledger;
    q->reader = lk_reader_of(env->model);
    struct lk_items_opts opts = {.env = env, .reader = q->reader, .n_ctx = context_of(env)};
    lk_status status = kind->make(&opts, &q->items, err);
    if (status != LK_OK) {
        lk_question_close(q);
        return status;
    }
    *set = (struct lk_task_set){.state = q, .n_item = q->items.n, .n_ctx = (int32_t)opts.n_ctx};
    return LK_OK;
}

void lk_question_close(void *state) {
    struct questions *q = state;
    if (!q) return;
    lk_arena_free(&q->items.arena);
    free(q);
}

void lk_question_key(const void *state, size_t i, char *key, size_t cap) {
    snprintf(key, cap, "%s", ((const struct questions *)state)->items.item[i].key);
}

double lk_question_cost(const void *state, size_t i) {
    enum { BYTES_PER_TOKEN = 4, COST_OF_GENERATED = 8 };
    const struct lk_item *item = &((const struct questions *)state)->items.item[i];
    size_t bytes = strlen(item->question) + (item->context ? strlen(item->context) : 0);
    for (size_t s = 0; s < item->n_shot; s++)
        bytes += strlen(item->shot[s].question) + strlen(item->shot[s].answer);
    return (double)bytes / BYTES_PER_TOKEN + (double)(COST_OF_GENERATED * item->n_generate);
}

/* ---- running an item ---- */

lk_status lk_question_prompt(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct questions *q = state;
    struct lk_item_tokens t;
    lk_status status = lk_item_tokenize(&q->reader, &q->items.item[i], &t, err);
    if (status != LK_OK) return status;
    *tok = t.tok;
    *n = t.n_head;
    return LK_OK;
}

/* Stand after the item's head and tail, the tail read through the cache. */
static lk_status ask(struct lk_subject *subject, const struct lk_item_tokens *t, lk_err *err) {
    lk_status status = lk_subject_prompt(subject, t->tok, t->n_head, err);
    return status == LK_OK ? lk_subject_read(subject, t->tok + t->n_head, t->n_tail, false, err)
                           : status;
}

/* After ask: nats for each token of the right answer, read one by one as a decoder does. *greedy: would
 * a greedy answer begin with it? */
static lk_status score_answer(struct lk_subject *subject, const struct lk_item_tokens *t,
                              double *nll, bool *greedy, lk_err *err) {
    const int32_t *answer = t->tok + t->n_head + t->n_tail;
    size_t room = (size_t)subject->n_ctx - t->n_head - t->n_tail,
           n = t->n_answer < room ? t->n_answer : room;
    double sum = 0;
    *greedy = n == t->n_answer;
    for (size_t i = 0; i < n; i++) {
        const float *logits = lk_subject_logits(subject, -1);
        sum += lk_nll(logits, subject->n_vocab, answer[i]);
        *greedy &= lk_most_probable(logits, subject->n_vocab) == answer[i];
        lk_status status = i + 1 < n ? lk_subject_read(subject, answer + i, 1, false, err) : LK_OK;
        if (status != LK_OK) return status;
    }
    *nll = n ? sum / (double)n : NAN;
    return LK_OK;
}

/* Bytes of a text that is not UTF-8, such as one cut within a character, become '?' from 0x80 on. */
static void make_ascii(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c >= 0x80) *c = '?';
}

/* After ask: a greedy answer as text. Owned: free(). */
static lk_status generate(struct lk_subject *subject, const struct lk_item *item,
                          const struct lk_item_tokens *t, char **text, lk_err *err) {
    size_t room = (size_t)subject->n_ctx - t->n_head - t->n_tail,
           most = item->n_generate < room ? item->n_generate : room, n = 0;
    int32_t *tok = calloc(most + 1, sizeof *tok);
    if (!tok) return lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    lk_status status = lk_subject_generate(subject, most, item->stop, tok, &n, err);
    if (status == LK_OK && !(*text = lk_task_detokenize(subject->model, tok, n)))
        status = lk_fail(err, LK_E_NOMEM, "no memory for an answer");
    free(tok);
    json_t *json = *text ? json_string(*text) : NULL; /* jansson takes UTF-8 only */
    if (*text && !json) make_ascii(*text);
    json_decref(json);
    return status;
}

static lk_status describe(const struct questions *q, const struct lk_item *item,
                          const struct lk_item_tokens *t, json_t *record, lk_err *err) {
    int failed =
        json_object_set_new(record, "prompt", json_string(q->reader.chat ? "chat" : "plain"));
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
    struct lk_score score[LK_MAX_SCORES];
    size_t n;
    lk_status status = lk_item_score(item, text, score, &n, err);
    if (status != LK_OK) return status;
    int failed = json_object_set_new(record, "answer", json_string(text));
    for (size_t i = 0; i < n; i++)
        failed |= json_object_set_new(record, score[i].name, lk_json_number(score[i].value));
    if (isfinite(nll)) failed |= json_object_set_new(record, "nll", json_real(nll));
    return failed ? lk_fail(err, LK_E_NOMEM, "no memory for a record") : LK_OK;
}

/* Of a summary, how much of its words the full cache's shares: how far the cache changed it, not how good it is. */
static lk_status compare_summary(const struct lk_item *item, const char *text, const json_t *full,
                                 json_t *record, lk_err *err) {
    const char *other = json_string_value(json_object_get(full, "answer"));
    struct lk_rouge rouge;
    if (item->match != LK_MATCH_ROUGE || !other) return LK_OK;
    lk_status status = lk_rouge(other, text, &rouge, err);
    if (status != LK_OK) return status;
    if (json_object_set_new(record, "rougeL_full", json_real(rouge.l.f)))
        return lk_fail(err, LK_E_NOMEM, "no memory for a record");
    return LK_OK;
}

/* Where greedy decoding would begin with the right answer, that is the answer of a task that looks for
 * it in the text, and nothing needs to be generated. */
static bool is_settled(const struct lk_item *item, bool greedy) {
    return greedy && item->answer && (item->match == LK_MATCH_ALL || item->match == LK_MATCH_ANY);
}

lk_status lk_question_run(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                          json_t *record, lk_err *err) {
    const struct questions *q = state;
    const struct lk_item *item = &q->items.item[i];
    struct lk_item_tokens t;
    double nll = NAN;
    bool greedy = false;
    char *text = NULL;
    lk_status status = lk_item_tokenize(&q->reader, item, &t, err);
    if (status != LK_OK) return status;
    if (t.n_head + t.n_tail >= (size_t)subject->n_ctx)
        status = lk_fail(err, LK_E_FULL, "%zu tokens leave no room for an answer; give a larger -c",
                         t.n_head + t.n_tail);
    if (status == LK_OK) status = ask(subject, &t, err);
    if (status == LK_OK && t.n_answer) status = lk_subject_save(subject, err);
    if (status == LK_OK && t.n_answer) status = score_answer(subject, &t, &nll, &greedy, err);
    bool settled = is_settled(item, greedy);
    if (status == LK_OK && t.n_answer && !settled) status = lk_subject_restore(subject, err);
    if (status == LK_OK && !settled) status = generate(subject, item, &t, &text, err);
    if (status == LK_OK) status = describe(q, item, &t, record, err);
    if (status == LK_OK)
        status = record_scores(item, settled ? item->answer : text, nll, record, err);
    if (status == LK_OK && !settled) status = compare_summary(item, text, full, record, err);
    free(text);
    lk_item_tokens_free(&t);
    return status;
}

/* ---- results ---- */

/* Records of one part, or all of them where it is NULL. Owned. */
static json_t *records_of_part(const json_t *records, const char *part) {
    json_t *out = json_array();
    for (size_t i = 0; out && i < json_array_size(records); i++) {
        json_t *record = json_array_get(records, i);
        const char *name = json_string_value(json_object_get(record, "part"));
        if (!part || (name && strcmp(name, part) == 0)) json_array_append(out, record);
    }
    return out;
}

/* Mean difference to the full cache, item by item, and its standard error: much smaller than that of
 * either mean, because both answered the same items. */
static void add_change(struct lk_result *result, const char *name, const json_t *records,
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
    if (n) lk_metric(result, name, sum / (double)n, lk_stderr(sum, sum2, (double)n), n);
}

static bool any_has(const json_t *records, const char *field) {
    for (size_t i = 0; i < json_array_size(records); i++)
        if (isfinite(lk_record_number(json_array_get(records, i), field))) return true;
    return false;
}

/* Everything about one field of the records of one part. */
static void summarise_field(struct lk_result *result, const json_t *records, const json_t *full,
                            const char *part, const char *field) {
    char name[128], change[160], series[160];
    if (!any_has(records, field)) return;
    snprintf(name, sizeof name, "%s%s%s", field, part ? "_" : "", part ? part : "");
    snprintf(change, sizeof change, "%s_change", name);
    snprintf(series, sizeof series, "%s_by_length", name);
    lk_metric_mean(result, name, records, field);
    if (full && any_has(full, field)) add_change(result, change, records, full, field);
    if (any_has(records, "length"))
        lk_series_mean(result, series, "length (tokens)", field, records, "length", field);
    if (any_has(records, "depth"))
        lk_heat_mean(result, name, "length (tokens)", "depth (%)", records, "length", "depth",
                     field);
}

static void summarise_part(struct lk_result *result, const json_t *records, const json_t *full,
                           const char *part) {
    static const char *const field[] = {"score",  "exact_match", "rouge1", "rouge2",
                                        "rougeL", "rougeL_full", "nll"};
    json_t *some = records_of_part(records, part),
           *some_full = full ? records_of_part(full, part) : NULL;
    if (!some || (full && !some_full)) result->failed = true;
    for (size_t f = 0; !result->failed && f < sizeof field / sizeof field[0]; f++)
        summarise_field(result, some, some_full, part, field[f]);
    json_decref(some);
    json_decref(some_full);
}

/* Is item i the first of its part? */
static bool begins_part(const struct lk_items *items, size_t i) {
    for (size_t j = 0; j < i; j++)
        if (items->item[j].part && strcmp(items->item[j].part, items->item[i].part) == 0)
            return false;
    return true;
}

lk_status lk_question_summarise(const void *state, const json_t *records, const json_t *full,
                                struct lk_result *result, lk_err *err) {
    const struct lk_items *items = &((const struct questions *)state)->items;
    size_t n_part = 0;
    const char *part[16];
    for (size_t i = 0; i < items->n; i++)
        if (items->item[i].part && begins_part(items, i) && n_part < sizeof part / sizeof part[0])
            part[n_part++] = items->item[i].part;
    summarise_part(result, records, full, NULL);
    for (size_t p = 0; n_part > 1 && p < n_part; p++)
        summarise_part(result, records, full, part[p]);
    return lk_result_check(result, err);
}
