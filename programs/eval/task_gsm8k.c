/* Tasks `gsm8k` and `mgsm`: arithmetic word problems, few-shot, by exact match of the last number.
 * GSM8K (Cobbe et al. 2021, arXiv:2110.14168) and MGSM (Shi et al. 2022, arXiv:2210.03057).
 *
 *   DIR/TASK/test.jsonl         {"question", "answer"}: a solution that ends with "#### NUMBER", or
 *                               a number. MGSM has "answer_number", and "lang", which is the part
 *   DIR/TASK/train-200.jsonl,   the same; the first of these files that exists. Five problems,
 *   DIR/TASK/train.jsonl        chosen by the seed, are the examples */
#include "base/buf.h"
#include "eval/jsonl.h"
#include "eval/question.h"
#include "eval/task_list.h"

#include <string.h>

enum { N_SHOT = 5, N_GENERATE = 256, DEFAULT_ITEMS = 100, QUICK_ITEMS = 20 };

struct problem {
    const char *question;
    const char *number;   /* the right answer */
    const char *solution; /* or NULL */
    const char *lang;     /* or NULL */
    size_t line;
};

struct problems {
    struct lk_arena *arena;
    struct problem *item; /* [n] */
    size_t n, cap;
};

/* The solution without GSM8K's calculator annotations such as <<48/2=24>>. */
static const char *without_marks(const char *s, struct lk_arena *arena) {
    struct lk_buf out = {0};
    for (const char *open; (open = strstr(s, "<<")) && strstr(open, ">>");
         s = strstr(open, ">>") + 2)
        lk_buf_append(&out, s, (size_t)(open - s));
    lk_buf_append(&out, s, strlen(s));
    return lk_arena_take_buf(arena, &out);
}

/* The right number as text, from "answer_number" or "answer". */
static lk_status read_number(const struct lk_jsonl_row *row, struct lk_arena *arena,
                             struct problem *p, lk_err *err) {
    const json_t *number = json_object_get(row->json, "answer_number"),
                 *answer = json_object_get(row->json, "answer");
    if (!json_is_number(number)) number = answer;
    const char *text = json_string_value(answer);
    double value;
    if (json_is_number(number))
        value = json_number_value(number);
    else if (!text || !lk_answer_number(text, &value))
        return lk_fail(err, LK_E_FORMAT,
                       "%s:%zu: \"answer\" has no number; it must end with \"#### NUMBER\"",
                       row->path, row->line);
    p->number = lk_arena_printf(arena, "%.15g", value);
    if (text && strstr(text, "####"))
        p->solution = lk_arena_printf(arena, " %s", without_marks(text, arena));
    return LK_OK;
}

static lk_status read_problem(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    struct problems *list = user;
    struct problem *item =
        lk_arena_grow(list->arena, list->item, list->n, &list->cap, sizeof *item);
    if (!item) return lk_arena_check(list->arena, err);
    list->item = item;
    struct problem p = {.line = row->line};
    const char *question, *lang = json_string_value(json_object_get(row->json, "lang"));
    lk_status status = lk_jsonl_string(row, "question", &question, err);
    if (status == LK_OK) status = read_number(row, list->arena, &p, err);
    if (status != LK_OK) return status;
    p.question = lk_arena_printf(list->arena, "Question: %s", question);
    p.lang = lang ? lk_arena_printf(list->arena, "%s", lang) : NULL;
    list->item[list->n++] = p;
    return lk_arena_check(list->arena, err);
}

/* Read the first of the files that exists. */
static lk_status read_problems(const struct lk_items_opts *opts, const char *const *file,
                               const char *what, struct problems *list, lk_err *err) {
    char path[4096];
    lk_status status = LK_E_ARG;
    for (size_t i = 0; file[i] && status != LK_OK; i++) {
        const char *name = lk_arena_printf(list->arena, "%s/%s", opts->env->task->name, file[i]);
        status = lk_task_data_path(opts->env, name, what, path, sizeof path, err);
    }
    if (status == LK_OK) status = lk_jsonl_read(path, read_problem, list, err);
    if (status == LK_OK && list->n == 0)
        status = lk_fail(err, LK_E_FORMAT, "%s has no problems", path);
    return status;
}

/* Choose the solved examples, the same for every item. */
static struct lk_shot *choose_shots(const struct lk_items_opts *opts, const struct problems *train,
                                    size_t *n, struct lk_arena *arena) {
    struct lk_rng rng = lk_rng_seed(opts->env->opts->seed, "shots", 0);
    struct lk_shot *shot = lk_arena_alloc(arena, N_SHOT * sizeof *shot);
    uint32_t *order = lk_arena_alloc(arena, train->n * sizeof *order);
    *n = 0;
    if (!shot || !order) return NULL;
    lk_rng_permutation(&rng, order, train->n);
    for (size_t i = 0; i < train->n && *n < N_SHOT; i++) {
        const struct problem *p = &train->item[order[i]];
        if (p->solution) shot[(*n)++] = (struct lk_shot){p->question, p->solution};
    }
    return shot;
}

/* LK_E_ARG if the item and its answer do not fit into the context. */
static lk_status check_length(const struct lk_items_opts *opts, const struct lk_item *item,
                              lk_err *err) {
    size_t n_tok = 0;
    lk_status status = lk_item_length(&opts->format, item, &n_tok, err);
    if (status == LK_OK && n_tok + item->n_generate > opts->n_ctx)
        status = lk_fail(
            err, LK_E_ARG,
            "%s: item %s and its answer need %zu tokens, and the context has %zu; give a larger -c",
            opts->env->task->name, item->key, n_tok + item->n_generate, opts->n_ctx);
    return status;
}

static lk_status add_problem_item(const struct lk_items_opts *opts, const struct problem *p,
                                  const struct lk_shot *shot, size_t n_shot, struct lk_items *out,
                                  lk_err *err) {
    const char **expect = lk_arena_alloc(&out->arena, sizeof *expect);
    if (!expect) return lk_arena_check(&out->arena, err);
    expect[0] = p->number;
    struct lk_item *item = &out->item[out->n];
    *item = (struct lk_item){.key = lk_arena_printf(&out->arena, "line %zu", p->line),
                             .part = p->lang,
                             .shot = shot,
                             .n_shot = n_shot,
                             .question = p->question,
                             .opening = "Answer:",
                             .answer = p->solution,
                             .expect = expect,
                             .n_expect = 1,
                             .match = LK_MATCH_NUMBER,
                             .stop = "\nQuestion:",
                             .n_generate = N_GENERATE,
                             .depth = -1};
    lk_status status = check_length(opts, item, err);
    out->n += status == LK_OK;
    return status;
}

static lk_status make_gsm8k_items(const struct lk_items_opts *opts, struct lk_items *out,
                                  lk_err *err) {
    static const char *const test_file[] = {"test.jsonl", NULL};
    static const char *const train_file[] = {"train-200.jsonl", "train.jsonl", NULL};
    struct problems test = {.arena = &out->arena}, train = {.arena = &out->arena};
    lk_status status = read_problems(
        opts, test_file, "problems {\"question\", \"answer\"}, one per line", &test, err);
    if (status == LK_OK)
        status = read_problems(opts, train_file, "problems with solutions, for its examples",
                               &train, err);
    if (status != LK_OK) return status;
    size_t n_shot, n = lk_task_limit(opts->env, test.n, DEFAULT_ITEMS, QUICK_ITEMS);
    struct lk_shot *shot = choose_shots(opts, &train, &n_shot, &out->arena);
    uint32_t *order = lk_arena_alloc(&out->arena, test.n * sizeof *order);
    struct lk_rng rng = lk_rng_seed(opts->env->opts->seed, opts->env->task->name, 0);
    status = lk_items_alloc(out, n, err);
    if (status == LK_OK) lk_rng_permutation(&rng, order, test.n);
    for (size_t i = 0; status == LK_OK && i < n; i++)
        status = add_problem_item(opts, &test.item[order[i]], shot, n_shot, out, err);
    return status;
}

static const struct lk_question_kind kind = {make_gsm8k_items, 2048, 2048};

const struct lk_task lk_task_gsm8k = {
    .name = "gsm8k",
    .summary = "arithmetic word problems, few-shot, exact match (--data)",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};

const struct lk_task lk_task_mgsm = {
    .name = "mgsm",
    .summary = "like gsm8k, in other languages (--data)",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};
