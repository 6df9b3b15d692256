/* Generates items, formats them as prompts, scores answers, and summarizes records. */
#include "eval/items.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/ledger.h"
#include "eval/material.h"
#include "eval/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- prompts, tokens and scores ---- */

struct lk_prompt_format lk_prompt_format_of(const lk_model *model) {
    lk_message msg = {"user", "."};
    char *text = NULL;
    bool chat = !lk_chat_format(model, &msg, 1, true, &text, NULL);
    lk_text_free(text);
    return (struct lk_prompt_format){model, chat};
}

/* A chat is marked text; any other text is plain. */
static unsigned tokenize_flags(const struct lk_prompt_format *format) {
    return LK_TOKENIZE_BEGIN | (format->chat ? LK_TOKENIZE_MARKED : 0);
}

/* The last turn of the user. */
static const char *last_question(const struct lk_item *item, struct lk_arena *arena) {
    if (!item->context) return item->question;
    return lk_arena_printf(arena, "%s\n\n%s", item->context, item->question);
}

static lk_status write_chat(struct lk_buf *out, const lk_model *model, const struct lk_item *item,
                            struct lk_arena *arena, lk_err *err) {
    size_t n = 2 * item->n_shot + 1;
    lk_message *msg = lk_arena_alloc(arena, n * sizeof *msg);
    if (!msg) return lk_arena_check(arena, err);
    for (size_t i = 0; i < item->n_shot; i++) {
        msg[2 * i] = (lk_message){"user", item->shot[i].question};
        msg[2 * i + 1] = (lk_message){
            "assistant", lk_arena_printf(arena, "%s%s", item->opening, item->shot[i].answer)};
    }
    msg[n - 1] = (lk_message){"user", last_question(item, arena)};
    char *text = NULL;
    lk_status status = lk_chat_format(model, msg, n, true, &text, err);
    if (status) return status;
    lk_buf_append_str(out, text);
    lk_buf_append_str(out, item->opening);
    lk_text_free(text);
    return lk_arena_check(arena, err);
}

/* The text of head and tail, appended to `out`. */
static lk_status write_prompt(struct lk_buf *out, const struct lk_prompt_format *format,
                              const struct lk_item *item, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    lk_status status = LK_OK;
    if (format->chat) {
        status = write_chat(out, format->model, item, &arena, err);
    } else {
        for (size_t i = 0; i < item->n_shot; i++)
            lk_buf_printf(out, "%s\n%s%s\n\n", item->shot[i].question, item->opening,
                          item->shot[i].answer);
        if (item->context) lk_buf_printf(out, "%s\n\n", item->context);
        lk_buf_printf(out, "%s\n%s", item->question, item->opening);
    }
    lk_arena_free(&arena);
    if (!status && out->failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    return status;
}

lk_status lk_item_length(const struct lk_prompt_format *format, const struct lk_item *item,
                         size_t *n_tok, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    lk_status status = write_prompt(&text, format, item, err);
    if (!status)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, n_tok, err);
    lk_tokens_free(tok);
    lk_buf_free(&text);
    return status;
}

/* Offset of the last question in the text of an item. */
static size_t tail_start(const char *text, size_t len, const struct lk_item *item) {
    size_t n = strlen(item->question);
    for (size_t i = len; i-- > 0;)
        if (len - i >= n && memcmp(text + i, item->question, n) == 0) return i;
    return len; /* the template changed the question: only the opening is in the tail */
}

/* Count the tokens tok [n_tok] of a text that are also the first tokens of its first `len` bytes. A
 * token may extend beyond `len`. */
static lk_status common_tokens(const struct lk_prompt_format *format, const char *text, size_t len,
                               const int32_t *tok, size_t n_tok, size_t *n, lk_err *err) {
    int32_t *part = NULL;
    size_t n_part = 0;
    lk_status status =
        lk_tokenize(format->model, text, len, tokenize_flags(format), 0, &part, &n_part, err);
    for (*n = 0; !status && *n < n_part && *n < n_tok && part[*n] == tok[*n];) ++*n;
    lk_tokens_free(part);
    return status;
}

lk_status lk_item_tokenize(const struct lk_prompt_format *format, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    size_t n_tok = 0, n_head = 0, n_given = 0;
    lk_status status = write_prompt(&text, format, item, err);
    size_t given_len = text.len, head_len = status ? 0 : tail_start(text.at, text.len, item);
    if (item->answer) lk_buf_append_str(&text, item->answer);
    if (!status && text.failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    if (!status)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, &n_tok, err);
    if (!status) status = common_tokens(format, text.at, head_len, tok, n_tok, &n_head, err);
    if (!status) status = common_tokens(format, text.at, given_len, tok, n_tok, &n_given, err);
    lk_buf_free(&text);
    if (!status && n_given < 2) status = lk_fail(err, LK_E_ARG, "item %s is empty", item->key);
    if (status) {
        lk_tokens_free(tok);
        return status;
    }
    if (n_head >= n_given) n_head = n_given - 1;
    if (n_head == 0) n_head = 1;
    *out = (struct lk_item_tokens){tok, n_head, n_given - n_head, n_tok - n_given};
    return LK_OK;
}

void lk_item_tokens_free(struct lk_item_tokens *tokens) {
    lk_tokens_free(tokens->tok);
    *tokens = (struct lk_item_tokens){0};
}

/* Whether the first `len` bytes of text contain `part`, ignoring the case of ASCII letters. */
static bool contains_text(const char *text, size_t len, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= len; i++)
        if (strncasecmp(text + i, part, n) == 0) return true;
    return false;
}

/* Length of the answer before the item's stop text. */
static size_t answer_length(const struct lk_item *item, const char *text) {
    const char *stop = item->stop ? strstr(text, item->stop) : NULL;
    return stop ? (size_t)(stop - text) : strlen(text);
}

double lk_item_score(const struct lk_item *item, const char *text) {
    size_t len = answer_length(item, text), n = 0;
    for (size_t i = 0; i < item->n_expect; i++) n += contains_text(text, len, item->expect[i]);
    if (item->match == LK_MATCH_ANY) return n > 0;
    return item->n_expect ? (double)n / item->n_expect : 0;
}

/* ---- the number of units with which an item has the requested length ---- */

/* Count the tokens of the item of n units, including room for its answer. */
static lk_status count_item_tokens(const struct lk_fit_opts *fit,
                                   const struct lk_prompt_format *format, size_t n, size_t *n_tok,
                                   lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_item item = {0};
    lk_status status = fit->make(fit->user, n, &arena, &item, err);
    if (!status) status = lk_arena_check(&arena, err);
    if (!status) status = lk_item_length(format, &item, n_tok, err);
    if (!status) *n_tok += item.n_generate;
    lk_arena_free(&arena);
    return status;
}

lk_status lk_fit_length(const struct lk_fit_opts *fit, const struct lk_prompt_format *format,
                        struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                        lk_err *err) {
    enum { FIRST_STEP = 16 };
    size_t low = fit->min_unit, high = fit->max_unit + 1, low_tok = 0; /* low fits, high does not */
    lk_status status = count_item_tokens(fit, format, low, &low_tok, err);
    if (status) return status;
    if (low_tok > fit->max_tok)
        return lk_fail(err, LK_E_ARG,
                       "%zu tokens are too few: the shortest item of this kind has %zu with its "
                       "answer",
                       fit->max_tok, low_tok);
    /* Units have similar lengths: extrapolate from the last two counts. */
    double unit = 0;
    while (high - low > 1 && (unit == 0 || fit->max_tok - low_tok >= unit)) {
        size_t step = unit > 0 ? (size_t)((fit->max_tok - low_tok) / unit) : FIRST_STEP, tok = 0;
        size_t n = step < high - low ? low + step : high - 1;
        status = count_item_tokens(fit, format, n, &tok, err);
        if (status) return status;
        unit = tok > low_tok ? (double)(tok - low_tok) / (n - low) : 1;
        if (tok <= fit->max_tok)
            low = n, low_tok = tok;
        else
            high = n;
    }
    status = fit->make(fit->user, low, arena, item, err);
    if (!status) status = lk_arena_check(arena, err);
    if (!status && n_unit) *n_unit = low;
    if (!status && n_tok) *n_tok = low_tok - item->n_generate;
    return status;
}

/* ---- the items of a grid of lengths, depths and parts ---- */

enum { N_LENGTH = 4, MAX_CELLS = 64 };

lk_status lk_items_alloc(struct lk_items *items, size_t n, lk_err *err) {
    items->item = lk_arena_alloc(&items->arena, (n ? n : 1) * sizeof *items->item);
    return lk_arena_check(&items->arena, err);
}

static size_t n_length(const struct lk_items_opts *opts) {
    if (opts->env->opts->n_question) return 1;
    return opts->env->opts->quick ? N_LENGTH / 2 : N_LENGTH;
}

/* Number of pairs of a length and a depth. */
static size_t n_cell(const struct lk_item_grid *grid, const struct lk_items_opts *opts) {
    return n_length(opts) * (grid->n_depth ? grid->n_depth : 1);
}

struct lk_grid_point lk_grid_point_at(const struct lk_item_grid *grid,
                                      const struct lk_items_opts *opts, size_t i) {
    const char *name = opts->env->task->name;
    uint64_t seed = opts->env->opts->seed;
    uint32_t order[MAX_CELLS];
    size_t n = n_cell(grid, opts), sweep = i / n, round = sweep / grid->n_part;
    size_t n_len = n_length(opts);
    struct lk_rng round_rng = lk_rng_seed(seed, name, UINT64_MAX - round);
    lk_rng_permutation(&round_rng, order, n);
    size_t cell = order[i % n];
    return (struct lk_grid_point){
        .part = (i % n + sweep) % grid->n_part,
        .round = round,
        .length = opts->n_ctx * (cell % n_len + 1) / n_len,
        .n_question = opts->env->opts->n_question,
        .depth = grid->n_depth > 1 ? (double)(cell / n_len) / (double)(grid->n_depth - 1) : -1,
        .rng = lk_rng_seed(seed, name, i),
        .user = grid->user};
}

static lk_status generate_item(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                               size_t i, struct lk_items *out, lk_err *err) {
    struct lk_grid_point point = lk_grid_point_at(grid, opts, i);
    struct lk_fit_opts fit = {grid->make, &point, grid->min_unit, grid->max_unit, point.length};
    size_t n_unit, n_tok;
    lk_status status =
        lk_fit_length(&fit, &opts->format, &out->arena, &out->item[i], &n_unit, &n_tok, err);
    if (status == LK_E_ARG && err) {
        char what[sizeof err->msg];
        snprintf(what, sizeof what, "%s", err->msg);
        lk_fail(err, status, "%s at length %zu: %.400s; give a larger -c", opts->env->task->name,
                point.length, what);
    }
    if (!status && n_unit == grid->max_unit &&
        n_tok + out->item[i].n_generate < point.length - point.length / 16)
        status = lk_fail(err, LK_E_ARG,
                         "%s: the data is enough for items of %zu tokens, not of %zu; give more "
                         "of it or a smaller -c",
                         opts->env->task->name, n_tok, point.length);
    return status;
}

lk_status lk_items_generate(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err) {
    const struct lk_eval_opts *o = opts->env->opts;
    size_t n_usual = n_cell(grid, opts) * (o->quick ? 1 : grid->n_part * grid->n_round);
    size_t n = o->limit ? o->limit : n_usual;
    lk_status status = lk_items_alloc(out, n, err);
    while (!status && out->n < n) {
        status = generate_item(grid, opts, out->n, out, err);
        if (!status) out->n++;
    }
    return status;
}

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

/* Go back to the saved head, and evaluate the tail through the cache. */
static lk_status ask(struct lk_backend *backend, const struct lk_item_tokens *t, lk_err *err) {
    lk_status status = lk_backend_restore(backend, err);
    return status ? status : lk_backend_eval(backend, t->tok + t->n_head, t->n_tail, false, err);
}

/* After ask: -log p per token of the right answer, in nats, evaluated token by token
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

/* After ask: a greedy answer as text. Owned: free(). */
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

/* Sums over the questions of an item. */
struct outcome {
    double score, nll;
    size_t n;
    struct lk_buf answers; /* one line each */
};

static lk_status record_scores(const struct outcome *sum, json_t *record, lk_err *err) {
    double n = (double)sum->n, nll = sum->nll / n;
    int failed = json_object_set_new(record, "answer", json_string(lk_buf_cstr(&sum->answers)));
    failed |= json_object_set_new(record, "score", json_real(sum->score / n));
    if (isfinite(nll)) failed |= json_object_set_new(record, "nll", json_real(nll));
    return failed ? lk_fail(err, LK_E_NOMEM, "no memory for a record") : LK_OK;
}

/* Whether the score is known without generating: a greedy answer would start with the right one,
 * and the task looks for it anywhere in the text. */
static bool is_answered(const struct lk_item *item, bool greedy) { return greedy && item->answer; }

/* Ask one question, whose head is saved. */
static lk_status run_question(const struct question_items *q, const struct lk_item *item,
                              const struct lk_item_tokens *t, struct lk_backend *backend,
                              struct outcome *sum, lk_err *err) {
    double nll = NAN;
    bool greedy = false;
    char *text = NULL;
    lk_status status = ask(backend, t, err);
    if (!status && t->n_answer) status = measure_answer_nll(backend, t, &nll, &greedy, err);
    bool answered = is_answered(item, greedy);
    if (!status && t->n_answer && !answered) status = ask(backend, t, err);
    if (!status && !answered) status = generate_answer(backend, item, t, q->min_answer, &text, err);
    if (!status) {
        const char *answer = answered ? item->answer : text;
        sum->score += lk_item_score(item, answer);
        sum->nll += nll;
        lk_buf_printf(&sum->answers, "%s%s", sum->n++ ? "\n" : "", answer);
    }
    free(text);
    return status;
}

/* Prefill and save the head of an item. What the cache holds then is recorded: later the session
 * has copies of the blocks that it shares with the saved one and changes. */
static lk_status save_head(const struct question_items *q, const struct lk_item *item,
                           const struct lk_item_tokens *t, struct lk_backend *backend,
                           json_t *record, lk_err *err) {
    lk_status status = lk_backend_prefill(backend, t->tok, t->n_head, err);
    if (!status) status = record_item(q, item, t, record, err);
    if (status) return status;
    lk_record_cache_stats(record, backend);
    return lk_backend_save(backend, err);
}

lk_status lk_question_run(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                          json_t *record, lk_err *err) {
    (void)full;
    const struct question_items *q = state;
    const struct lk_item *first = &q->items.item[i];
    struct outcome sum = {0};
    lk_status status = LK_OK;
    for (const struct lk_item *item = first; item && !status; item = item->next) {
        struct lk_item_tokens t;
        status = lk_item_tokenize(&q->format, item, &t, err);
        if (status) break;
        if (t.n_head + t.n_tail >= (size_t)backend->n_ctx)
            status =
                lk_fail(err, LK_E_FULL, "%zu tokens leave no room for an answer; give a larger -c",
                        t.n_head + t.n_tail);
        if (!status && item == first) status = save_head(q, item, &t, backend, record, err);
        if (!status) status = run_question(q, item, &t, backend, &sum, err);
        lk_item_tokens_free(&t);
    }
    if (!status) status = record_scores(&sum, record, err);
    lk_buf_free(&sum.answers);
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
