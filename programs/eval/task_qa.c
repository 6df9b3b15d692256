/* Task `qa`: questions whose answer is in one or two of many documents, RULER's question answering
 * (Hsieh et al. 2024, section 3.4).
 *
 * If --data has qa/test.jsonl, with rows {"question", "context", "answer" or "answers": [..]}, an
 * item consists of the row's context among the contexts of other rows. Otherwise documents about
 * fictional people and towns are generated. Part "one_hop" asks for a person's town of birth,
 * "two_hop" for the river of that town, like SQuAD and HotpotQA in RULER. Score: 1 if the answer
 * contains a right one. */
#include "base/atomic_file.h"
#include "base/buf.h"
#include "eval/items.h"
#include "eval/material.h"
#include "eval/task.h"

#include <string.h>

#define TASK_TEXT                                                                                  \
    "Answer the question that follows these documents from what they say, in as few words as "     \
    "possible.\n\n%s"

enum { N_GENERATE = 32, N_NAME = 4096, MAX_PAIRS = N_NAME - 1 };

/* The context of an item: "Document 1:\n...\n\nDocument 2:\n...", in the given order. */
static const char *write_documents(const char *const *document, const uint32_t *order, size_t n,
                                   struct lk_arena *arena) {
    struct lk_buf text = {0};
    for (size_t i = 0; i < n; i++)
        lk_buf_printf(&text, "%sDocument %zu:\n%s", i ? "\n\n" : "", i + 1, document[order[i]]);
    return lk_arena_printf(arena, TASK_TEXT, lk_arena_take_buf(arena, &text));
}

/* Set the fields that both kinds of items share. */
static void set_qa_fields(struct lk_item *item, const struct lk_grid_point *point, const char *part,
                          const char *const *answer, size_t n_answer, struct lk_arena *arena) {
    item->key = lk_arena_printf(arena, "%s/%zu/%zu", part, point->length, point->round);
    item->part = part;
    item->opening = "Answer:";
    item->answer = lk_arena_printf(arena, " %s", answer[0]);
    item->expect = answer;
    item->n_expect = n_answer;
    item->match = LK_MATCH_ANY;
    item->stop = "\n";
    item->n_generate = N_GENERATE;
    item->length = (double)point->length;
    item->depth = -1;
}

/* ---- generated documents ---- */

struct person {
    const char *name, *town, *river;
};

/* A random element of a list that ends with NULL. */
static const char *random_element(struct lk_rng *rng, const char *const *list) {
    size_t n = 0;
    while (list[n]) n++;
    return list[lk_rng_below(rng, n)];
}

static const char *name_of(size_t index, const char *ending, struct lk_arena *arena) {
    return lk_invent_name((uint32_t)(index % N_NAME), ending, arena);
}

/* Write the i-th person and the two documents about them. The steps between names are odd, so 4096
 * names differ. */
static struct person write_person(struct lk_rng *rng, const size_t base[3], size_t i,
                                  const char **document, struct lk_arena *arena) {
    static const char *const first[] = {"Ada",   "Bruno", "Clara", "David", "Edith",
                                        "Felix", "Greta", "Hugo",  "Ida",   "Jonas",
                                        "Karin", "Leo",   NULL};
    static const char *const trade[] = {"clockmaker", "baker",   "surveyor", "printer", "nurse",
                                        "glazier",    "teacher", "cooper",   NULL};
    static const char *const deed[] = {"a map of the coast",  "a book of songs",
                                       "a bridge of stone",   "a new kind of lamp",
                                       "a school for pilots", NULL};
    static const char *const day[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                      "Friday", "Saturday", NULL};
    static const char *const sight[] = {"mill",           "town hall",   "lighthouse", "library",
                                        "covered bridge", "old harbour", NULL};
    const char *given = random_element(rng, first);
    struct person p = {
        .name = lk_arena_printf(arena, "%s %s", given, name_of(base[0] + i * 733, "son", arena)),
        .town = name_of(base[1] + i * 1031, "ham", arena),
        .river = name_of(base[2] + i * 517, "el", arena)};
    size_t year = 1700 + lk_rng_below(rng, 250), people = 800 + lk_rng_below(rng, 90000);
    const char *trained = random_element(rng, trade),
               *home = name_of(lk_rng_below(rng, N_NAME), "stead", arena),
               *known = random_element(rng, deed);
    const char *market = random_element(rng, day), *building = random_element(rng, sight);
    document[2 * i] = lk_arena_printf(arena,
                                      "%s was born in %s in %zu, learned the trade of a %s and "
                                      "later lived in %s. What is remembered of %s is %s.",
                                      p.name, p.town, year, trained, home, p.name, known);
    document[2 * i + 1] =
        lk_arena_printf(arena,
                        "%s is a town of %zu people on the river %s. Its market is held every %s, "
                        "and its %s is known in all the country.",
                        p.town, people, p.river, market, building);
    return p;
}

static lk_status make_generated(void *user, size_t n_pair, struct lk_arena *arena,
                                struct lk_item *item, lk_err *err) {
    const struct lk_grid_point *point = user;
    struct lk_rng rng = point->rng;
    const char **document = lk_arena_alloc(arena, 2 * n_pair * sizeof *document),
               **answer = lk_arena_alloc(arena, sizeof *answer);
    uint32_t *order = lk_arena_alloc(arena, 2 * n_pair * sizeof *order);
    if (!document || !answer || !order) return lk_arena_check(arena, err);
    size_t base[3];
    for (size_t i = 0; i < 3; i++) base[i] = lk_rng_below(&rng, N_NAME);
    struct person asked = write_person(&rng, base, 0, document, arena);
    for (size_t i = 1; i < n_pair; i++) write_person(&rng, base, i, document, arena);
    lk_rng_permutation(&rng, order, 2 * n_pair);
    bool two = point->part == 1;
    answer[0] = two ? asked.river : asked.town;
    item->context = write_documents(document, order, 2 * n_pair, arena);
    item->question =
        two ? lk_arena_printf(arena, "Question: On which river lies the town in which %s was born?",
                              asked.name)
            : lk_arena_printf(arena, "Question: In which town was %s born?", asked.name);
    set_qa_fields(item, point, two ? "two_hop" : "one_hop", answer, 1, arena);
    return lk_arena_check(arena, err);
}

/* ---- documents from data ---- */

struct qa_question {
    const char *text;
    const char *const *answer; /* [n_answer] */
    size_t n_answer;
    size_t context; /* index of the context that contains the answer */
    size_t line;
};

struct qa_data_set {
    struct lk_arena *arena;
    struct qa_question *question; /* [n_question] */
    const char **context;         /* [n_context], all different */
    size_t n_question, n_context, question_cap, context_cap;
};

/* The index of a context, which is added if it is new. */
static size_t context_index(struct qa_data_set *d, const char *text) {
    for (size_t i = 0; i < d->n_context; i++)
        if (strcmp(d->context[i], text) == 0) return i;
    d->context[d->n_context] = lk_arena_copy(d->arena, text, strlen(text));
    return d->n_context++;
}

/* Read "answers", an array of strings, or "answer", a string. */
static lk_status read_answers(const struct lk_jsonl_row *row, struct lk_arena *arena,
                              const char *const **out, size_t *n, lk_err *err) {
    const json_t *list = json_object_get(row->json, "answers");
    const char *one = NULL;
    if (!list) {
        lk_status status = lk_jsonl_string(row, "answer", &one, err);
        if (status) return status;
    }
    *n = one ? 1 : json_array_size(list);
    if (*n == 0)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"answers\" is not an array of strings",
                       row->path, row->line);
    const char **answer = lk_arena_alloc(arena, *n * sizeof *answer);
    for (size_t i = 0; answer && i < *n; i++) {
        const char *text = one ? one : json_string_value(json_array_get(list, i));
        if (!text || !*text)
            return lk_fail(err, LK_E_FORMAT, "%s:%zu: an answer is empty or not a string",
                           row->path, row->line);
        answer[i] = lk_arena_copy(arena, text, strlen(text));
    }
    *out = answer;
    return lk_arena_check(arena, err);
}

static lk_status read_question(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    struct qa_data_set *d = user;
    struct qa_question *question =
        lk_arena_grow(d->arena, d->question, d->n_question, &d->question_cap, sizeof *question);
    const char **contexts =
        lk_arena_grow(d->arena, d->context, d->n_context, &d->context_cap, sizeof *contexts);
    if (!question || !contexts) return lk_arena_check(d->arena, err);
    d->question = question;
    d->context = contexts;
    const char *text, *context;
    struct qa_question *q = &d->question[d->n_question];
    lk_status status = lk_jsonl_string(row, "question", &text, err);
    if (!status) status = lk_jsonl_string(row, "context", &context, err);
    if (!status) status = read_answers(row, d->arena, &q->answer, &q->n_answer, err);
    if (status) return status;
    q->text = lk_arena_printf(d->arena, "Question: %s", text);
    q->context = context_index(d, context);
    q->line = row->line;
    d->n_question++;
    return lk_arena_check(d->arena, err);
}

static lk_status make_from_data(void *user, size_t n, struct lk_arena *arena, struct lk_item *item,
                                lk_err *err) {
    const struct lk_grid_point *point = user;
    const struct qa_data_set *d = point->user;
    struct lk_rng rng = point->rng;
    const struct qa_question *q = &d->question[lk_rng_below(&rng, d->n_question)];
    const char **document = lk_arena_alloc(arena, n * sizeof *document);
    uint32_t *order = lk_arena_alloc(arena, d->n_context * sizeof *order);
    if (!document || !order) return lk_arena_check(arena, err);
    lk_rng_permutation(&rng, order, d->n_context);
    document[0] = d->context[q->context];
    for (size_t i = 1, next = 0; i < n; next++)
        if (order[next] != q->context) document[i++] = d->context[order[next]];
    lk_rng_permutation(&rng, order, n);
    item->context = write_documents(document, order, n, arena);
    item->question = q->text;
    set_qa_fields(item, point, "data", q->answer, q->n_answer, arena);
    item->key = lk_arena_printf(arena, "%s/line %zu", item->key, q->line);
    return lk_arena_check(arena, err);
}

static lk_status make_items_from_data(const char *path, const struct lk_items_opts *opts,
                                      struct lk_items *out, lk_err *err) {
    struct qa_data_set data = {.arena = &out->arena};
    lk_status status = lk_jsonl_read(path, read_question, &data, err);
    if (!status && data.n_question == 0)
        status = lk_fail(err, LK_E_FORMAT, "%s has no questions", path);
    if (status) return status;
    struct lk_item_grid grid = {.n_part = 1,
                                .n_round = 5,
                                .min_unit = 1,
                                .max_unit = data.n_context,
                                .make = make_from_data,
                                .user = &data};
    return lk_items_generate(&grid, opts, out, err);
}

static lk_status make_qa_items(const struct lk_items_opts *opts, struct lk_items *out,
                               lk_err *err) {
    static const struct lk_item_grid grid = {
        .n_part = 2, .n_round = 3, .min_unit = 2, .max_unit = MAX_PAIRS, .make = make_generated};
    const char *data = opts->env->opts->data,
               *path = data ? lk_arena_printf(&out->arena, "%s/qa/test.jsonl", data) : NULL;
    bool exists = false;
    lk_status status = path ? lk_file_exists(&exists, path, err) : LK_OK;
    if (status) return status;
    if (exists) return make_items_from_data(path, opts, out, err);
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_qa_items, 4096, 1024};

const struct lk_task lk_task_qa = {
    .name = "qa",
    .summary = "RULER: answers in one or two of many documents",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};
