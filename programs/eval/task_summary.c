/* Summaries of long documents, by ROUGE (eval/rouge.h) against a reference.
 *
 *   DIR/summary/test.jsonl   {"document", "query", "reference"}
 *   DIR/qmsum/test.jsonl     QMSum (Zhong et al. 2021, arXiv:2104.05938): "meeting_transcripts" of {"speaker",
 *                            "content"}, and "general_query_list" and "specific_query_list" of {"query", "answer"}
 *
 * A document that is too long for the context loses its middle, as in LongBench. */
#include "eval/jsonl.h"
#include "eval/question.h"
#include "eval/tasks.h"

#include <string.h>

enum { N_GENERATE = 160, USUAL = 20, QUICK = 4, LEAST_WORDS = 16 };

struct request {
    const char *document, *query, *reference;
    size_t line, index; /* index: within the line */
};

struct requests {
    struct lk_arena *arena;
    struct request *item; /* [n] */
    size_t n, cap;
};

static void add_request(struct requests *list, struct request r) {
    struct request *item =
        lk_arena_list(list->arena, list->item, list->n, &list->cap, sizeof *item);
    if (!item) return;
    list->item = item;
    list->item[list->n++] = r;
}

static const char *copy(const char *text, struct lk_arena *arena) {
    return lk_arena_copy(arena, text, strlen(text));
}

static lk_status read_plain(void *user, const struct lk_row *row, lk_err *err) {
    struct requests *list = user;
    struct request r = {.line = row->line};
    lk_status status = lk_row_text(row, "document", &r.document, err);
    if (status == LK_OK) status = lk_row_text(row, "query", &r.query, err);
    if (status == LK_OK) status = lk_row_text(row, "reference", &r.reference, err);
    if (status != LK_OK) return status;
    r.document = copy(r.document, list->arena), r.query = copy(r.query, list->arena),
    r.reference = copy(r.reference, list->arena);
    add_request(list, r);
    return lk_arena_check(list->arena, err);
}

/* A meeting as "SPEAKER: CONTENT" lines. */
static lk_status write_meeting(const struct lk_row *row, struct lk_string *out, lk_err *err) {
    const json_t *turns, *turn;
    size_t i;
    lk_status status = lk_row_list(row, "meeting_transcripts", &turns, err);
    if (status != LK_OK) return status;
    json_array_foreach(turns, i, turn) {
        const char *speaker, *content;
        if (status == LK_OK) status = lk_row_text_in(row, turn, "speaker", &speaker, err);
        if (status == LK_OK) status = lk_row_text_in(row, turn, "content", &content, err);
        if (status == LK_OK) lk_string_print(out, "%s%s: %s", i ? "\n" : "", speaker, content);
    }
    return status;
}

static lk_status read_meeting(void *user, const struct lk_row *row, lk_err *err) {
    static const char *const names[] = {"general_query_list", "specific_query_list"};
    struct requests *list = user;
    struct lk_string document = {.arena = list->arena};
    lk_status status = write_meeting(row, &document, err);
    size_t index = 0;
    for (size_t l = 0; l < 2; l++) {
        const json_t *queries = NULL, *query;
        size_t i;
        if (status == LK_OK) status = lk_row_list(row, names[l], &queries, err);
        if (status != LK_OK) return status;
        json_array_foreach(queries, i, query) {
            struct request r = {
                .document = lk_string_text(&document), .line = row->line, .index = index++};
            status = lk_row_text_in(row, query, "query", &r.query, err);
            if (status == LK_OK) status = lk_row_text_in(row, query, "answer", &r.reference, err);
            if (status != LK_OK) return status;
            r.query = copy(r.query, list->arena), r.reference = copy(r.reference, list->arena);
            add_request(list, r);
        }
    }
    return lk_arena_check(list->arena, err);
}

static lk_status read_requests(const struct lk_items_opts *opts, struct requests *list,
                               lk_err *err) {
    char path[4096];
    bool plain = lk_task_data(opts->env, "summary/test.jsonl", "documents", path, sizeof path,
                              NULL) == LK_OK;
    lk_status status = plain ? LK_OK
                             : lk_task_data(opts->env, "qmsum/test.jsonl",
                                            "meetings (or summary/test.jsonl with {\"document\", "
                                            "\"query\", \"reference\"} on each line)",
                                            path, sizeof path, err);
    if (status == LK_OK) status = lk_jsonl_read(path, plain ? read_plain : read_meeting, list, err);
    if (status == LK_OK && list->n == 0)
        status = lk_fail(err, LK_E_FORMAT, "%s has no documents with queries", path);
    return status;
}

/* A document cut into words, with the white space before each. */
struct words {
    const struct request *request;
    const char **word; /* [n + 1] where each begins; the last: where the text ends */
    size_t n;
};

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static size_t find_words(const char *text, const char **word) {
    size_t n = 0;
    const char *s = text;
    while (*s) {
        if (word) word[n] = s;
        while (is_space(*s)) s++;
        while (*s && !is_space(*s)) s++;
        n++;
    }
    if (word) word[n] = s;
    return n;
}

/* The item with n words of the document: the first half and the last. */
static lk_status make_summary(void *user, size_t n, struct lk_arena *arena, struct lk_item *item,
                              lk_err *err) {
    const struct words *w = user;
    const struct request *r = w->request;
    const char **expect = lk_arena_take(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = r->reference;
    size_t head = n - n / 2, tail = n / 2;
    struct lk_string context = {.arena = arena};
    lk_string_print(&context, "Read this document; a question about it follows.\n\n");
    lk_string_add(&context, w->word[0], (size_t)(w->word[head] - w->word[0]));
    if (n < w->n) lk_string_print(&context, "\n[...]\n");
    lk_string_add(&context, w->word[w->n - tail], (size_t)(w->word[w->n] - w->word[w->n - tail]));
    *item = (struct lk_item){.key = lk_arena_print(arena, "line %zu/%zu", r->line, r->index),
                             .context = lk_string_text(&context),
                             .question = lk_arena_print(
                                 arena, "Answer in one paragraph, from the document: %s", r->query),
                             .opening = "Answer:",
                             .expect = expect,
                             .n_expect = 1,
                             .match = LK_MATCH_ROUGE,
                             .stop = "\n\n",
                             .n_generate = N_GENERATE,
                             .depth = -1};
    return LK_OK;
}

static lk_status add_item(const struct lk_items_opts *opts, const struct request *request,
                          struct lk_items *out, lk_err *err) {
    struct words words = {request, NULL, find_words(request->document, NULL)};
    words.word = lk_arena_take(&out->arena, (words.n + 1) * sizeof *words.word);
    if (!words.word) return lk_arena_check(&out->arena, err);
    find_words(request->document, words.word);
    struct lk_fit fit = {make_summary, &words, LEAST_WORDS < words.n ? LEAST_WORDS : words.n,
                         words.n, opts->n_ctx};
    lk_status status =
        lk_fit_item(&fit, &opts->reader, &out->arena, &out->item[out->n], NULL, NULL, err);
    out->n += status == LK_OK;
    return status;
}

static lk_status make_items(const struct lk_items_opts *opts, struct lk_items *out, lk_err *err) {
    struct requests list = {.arena = &out->arena};
    lk_status status = read_requests(opts, &list, err);
    if (status != LK_OK) return status;
    size_t n = lk_task_limit(opts->env, list.n, USUAL, QUICK);
    struct lk_random random = lk_random_seed(opts->env->opts->seed, opts->env->task->name, 0);
    uint32_t *order = lk_arena_take(&out->arena, list.n * sizeof *order);
    status = lk_items_room(out, n, err);
    if (status == LK_OK) lk_random_order(&random, order, list.n);
    for (size_t i = 0; status == LK_OK && i < n; i++)
        status = add_item(opts, &list.item[order[i]], out, err);
    return status;
}

static const struct lk_question_kind kind = {make_items, 4096, 2048};

const struct lk_task lk_task_summary = {
    .name = "summary",
    .summary = "ROUGE of summaries of long documents (--data)",
    .arg = &kind,
    .open = lk_question_open,
    .close = lk_question_close,
    .key = lk_question_key,
    .cost = lk_question_cost,
    .prompt = lk_question_prompt,
    .run = lk_question_run,
    .summarise = lk_question_summarise,
};
