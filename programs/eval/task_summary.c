/* Task `summary`: summaries of long documents, by ROUGE (eval/rouge.h) against a reference, and the
 * likelihood of the reference, which tells caches apart more clearly.
 *
 *   DIR/summary/test.jsonl   {"document", "query", "reference"}
 *   DIR/qmsum/test.jsonl     QMSum (Zhong et al. 2021, arXiv:2104.05938):
 *                            "meeting_transcripts": [{"speaker", "content"}],
 *                            "general_query_list" and "specific_query_list": [{"query", "answer"}]
 *
 * The middle of a document that is too long for the context is removed, as in LongBench. */
#include "base/buf.h"
#include "eval/haystack.h"
#include "eval/jsonl.h"
#include "eval/question.h"
#include "eval/task_list.h"

#include <string.h>

enum { N_GENERATE = 160, DEFAULT_ITEMS = 20, QUICK_ITEMS = 4, MIN_WORDS = 16 };

struct summary_request {
    const char *document, *query, *reference;
    size_t line, index; /* index: of the query in the line */
};

struct summary_requests {
    struct lk_arena *arena;
    struct summary_request *item; /* [n] */
    size_t n, cap;
};

static void add_request(struct summary_requests *list, struct summary_request r) {
    struct summary_request *item =
        lk_arena_grow(list->arena, list->item, list->n, &list->cap, sizeof *item);
    if (!item) return;
    list->item = item;
    list->item[list->n++] = r;
}

static const char *copy_string(const char *text, struct lk_arena *arena) {
    return lk_arena_copy(arena, text, strlen(text));
}

static lk_status read_plain(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    struct summary_requests *list = user;
    struct summary_request r = {.line = row->line};
    lk_status status = lk_jsonl_string(row, "document", &r.document, err);
    if (status == LK_OK) status = lk_jsonl_string(row, "query", &r.query, err);
    if (status == LK_OK) status = lk_jsonl_string(row, "reference", &r.reference, err);
    if (status != LK_OK) return status;
    r.document = copy_string(r.document, list->arena);
    r.query = copy_string(r.query, list->arena);
    r.reference = copy_string(r.reference, list->arena);
    add_request(list, r);
    return lk_arena_check(list->arena, err);
}

/* Append a meeting as lines "SPEAKER: CONTENT". */
static lk_status write_meeting(const struct lk_jsonl_row *row, struct lk_buf *out, lk_err *err) {
    const json_t *turns, *turn;
    size_t i;
    lk_status status = lk_jsonl_array(row, "meeting_transcripts", &turns, err);
    if (status != LK_OK) return status;
    json_array_foreach(turns, i, turn) {
        const char *speaker, *content;
        if (status == LK_OK) status = lk_jsonl_string_in(row, turn, "speaker", &speaker, err);
        if (status == LK_OK) status = lk_jsonl_string_in(row, turn, "content", &content, err);
        if (status == LK_OK) lk_buf_printf(out, "%s%s: %s", i ? "\n" : "", speaker, content);
    }
    return status;
}

static lk_status read_meeting(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    static const char *const names[] = {"general_query_list", "specific_query_list"};
    struct summary_requests *list = user;
    struct lk_buf text = {0};
    lk_status status = write_meeting(row, &text, err);
    const char *document = lk_arena_take_buf(list->arena, &text);
    size_t index = 0;
    for (size_t l = 0; l < 2; l++) {
        const json_t *queries = NULL, *query;
        size_t i;
        if (status == LK_OK) status = lk_jsonl_array(row, names[l], &queries, err);
        if (status != LK_OK) return status;
        json_array_foreach(queries, i, query) {
            struct summary_request r = {.document = document, .line = row->line, .index = index++};
            status = lk_jsonl_string_in(row, query, "query", &r.query, err);
            if (status == LK_OK)
                status = lk_jsonl_string_in(row, query, "answer", &r.reference, err);
            if (status != LK_OK) return status;
            r.query = copy_string(r.query, list->arena);
            r.reference = copy_string(r.reference, list->arena);
            add_request(list, r);
        }
    }
    return lk_arena_check(list->arena, err);
}

static lk_status read_requests(const struct lk_items_opts *opts, struct summary_requests *list,
                               lk_err *err) {
    char path[4096];
    bool plain = lk_task_data_path(opts->env, "summary/test.jsonl", "documents", path, sizeof path,
                                   NULL) == LK_OK;
    lk_status status =
        plain ? LK_OK
              : lk_task_data_path(opts->env, "qmsum/test.jsonl",
                                  "meetings (or summary/test.jsonl with {\"document\", "
                                  "\"query\", \"reference\"} on each line)",
                                  path, sizeof path, err);
    if (status == LK_OK) status = lk_jsonl_read(path, plain ? read_plain : read_meeting, list, err);
    if (status == LK_OK && list->n == 0)
        status = lk_fail(err, LK_E_FORMAT, "%s has no documents with queries", path);
    return status;
}

/* A document split into words, each with the white space before it. */
struct document_words {
    const struct summary_request *request;
    const char **word; /* [n + 1] start of each word; the last: end of the text */
    size_t n;
};

/* Write the starts of the words and the end of the text to `word` (may be NULL). Returns the number
 * of words. */
static size_t find_words(const char *text, const char **word) {
    size_t n = 0;
    const char *s = text;
    while (*s) {
        if (word) word[n] = s;
        while (lk_is_space(*s)) s++;
        while (*s && !lk_is_space(*s)) s++;
        n++;
    }
    if (word) word[n] = s;
    return n;
}

/* The item with n words of the document: half from its start, half from its end. */
static lk_status make_summary(void *user, size_t n, struct lk_arena *arena, struct lk_item *item,
                              lk_err *err) {
    const struct document_words *w = user;
    const struct summary_request *r = w->request;
    const char **expect = lk_arena_alloc(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = r->reference;
    size_t head = n - n / 2, tail = n / 2;
    struct lk_buf context = {0};
    lk_buf_printf(&context, "Read this document; a question about it follows.\n\n");
    lk_buf_append(&context, w->word[0], (size_t)(w->word[head] - w->word[0]));
    if (n < w->n) lk_buf_printf(&context, "\n[...]\n");
    lk_buf_append(&context, w->word[w->n - tail], (size_t)(w->word[w->n] - w->word[w->n - tail]));
    *item = (struct lk_item){.key = lk_arena_printf(arena, "line %zu/%zu", r->line, r->index),
                             .context = lk_arena_take_buf(arena, &context),
                             .question = lk_arena_printf(
                                 arena, "Answer in one paragraph, from the document: %s", r->query),
                             .opening = "Answer:",
                             .answer = lk_arena_printf(arena, " %s", r->reference),
                             .expect = expect,
                             .n_expect = 1,
                             .match = LK_MATCH_ROUGE,
                             .stop = "\n\n",
                             .n_generate = N_GENERATE,
                             .depth = -1};
    return LK_OK;
}

static lk_status add_summary_item(const struct lk_items_opts *opts,
                                  const struct summary_request *request, struct lk_items *out,
                                  lk_err *err) {
    struct document_words words = {request, NULL, find_words(request->document, NULL)};
    words.word = lk_arena_alloc(&out->arena, (words.n + 1) * sizeof *words.word);
    if (!words.word) return lk_arena_check(&out->arena, err);
    find_words(request->document, words.word);
    struct lk_fit_opts fit = {make_summary, &words, MIN_WORDS < words.n ? MIN_WORDS : words.n,
                              words.n, opts->n_ctx};
    lk_status status =
        lk_fit_length(&fit, &opts->format, &out->arena, &out->item[out->n], NULL, NULL, err);
    out->n += status == LK_OK;
    return status;
}

static lk_status make_summary_items(const struct lk_items_opts *opts, struct lk_items *out,
                                    lk_err *err) {
    struct summary_requests list = {.arena = &out->arena};
    lk_status status = read_requests(opts, &list, err);
    if (status != LK_OK) return status;
    size_t n = lk_task_limit(opts->env, list.n, DEFAULT_ITEMS, QUICK_ITEMS);
    struct lk_rng rng = lk_rng_seed(opts->env->opts->seed, opts->env->task->name, 0);
    uint32_t *order = lk_arena_alloc(&out->arena, list.n * sizeof *order);
    status = lk_items_alloc(out, n, err);
    if (status == LK_OK) lk_rng_permutation(&rng, order, list.n);
    for (size_t i = 0; status == LK_OK && i < n; i++)
        status = add_summary_item(opts, &list.item[order[i]], out, err);
    return status;
}

static const struct lk_question_kind kind = {make_summary_items, 4096, 2048};

const struct lk_task lk_task_summary = {
    .name = "summary",
    .summary = "ROUGE of summaries of long documents (--data)",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};
