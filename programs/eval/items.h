/* Tasks that ask questions: their items, generated from a seed or read from data, and how backends
 * answer them.
 *
 * Generated items cover a grid: lengths of 1/4, 2/4, 3/4 and all of the context (with --quick 1/2
 * and all), and depths of a needle. A sweep visits every length and depth once, in random order,
 * and cycles through the parts (kinds of items). A round has as many sweeps as there are parts, so
 * it visits every place with every part. A limit therefore thins out the grid evenly, and a large
 * limit adds further rounds. The same seed gives the same items in the same order, whatever the
 * limit. */
#ifndef LK_EVAL_ITEMS_H
#define LK_EVAL_ITEMS_H

#include "base/err.h"
#include "eval/material.h"
#include "eval/task.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- items: questions that the model answers in its own words ----
 *
 *   plain  shot 0's question \n opening answer \n\n ... context \n\n question \n opening
 *   chat   the same turns in the model's chat template. Answers are turns of the assistant. The
 *          last answer starts with the opening
 *
 *          |--- shots, context: the head ---|--- last question, opening: the tail ---| answer
 *
 * The head is prefilled as a prompt and compressed. The tail is evaluated through the cache. A
 * session attends to a prompt exactly, so with the question in the prompt the answer would be
 * looked up in the full cache. Items measure a cache that does not know the question in advance.
 *
 * The opening ("The pass key is") makes small models answer at all. RULER calls it an answer prefix
 * (Hsieh et al. 2024, arXiv:2404.06654). */

/* How an answer is compared with the expected texts. */
enum lk_match {
    LK_MATCH_ALL, /* the share of the expected texts in the answer, ignoring case */
    LK_MATCH_ANY, /* 1 if the answer contains any expected text */
};

/* A solved example. Its answer is the text after the opening. */
struct lk_shot {
    const char *question, *answer;
};

struct lk_item {
    const char *key;            /* identifies the item in the results: "single/4096/50/0" */
    const char *part;           /* kind of item within its task, or NULL */
    const struct lk_shot *shot; /* [n_shot] solved examples before the question */
    size_t n_shot;
    const char *context; /* the long text that the question is about, or NULL */
    const char *question, *opening;
    const char *answer;        /* the right text after the opening, for its likelihood, or NULL */
    const char *const *expect; /* [n_expect] */
    size_t n_expect;
    enum lk_match match;
    const char *stop;  /* the answer ends before this text; NULL: where the model ends it */
    size_t n_generate; /* maximum number of tokens of an answer */
    double length;     /* requested tokens, question and answer together; 0: not requested */
    double depth;      /* of the needle, 0 (start) to 1 (end); < 0: none */
    const struct lk_item *next; /* another question about the same context, or NULL */
};

/* How items become prompts for a model. */
struct lk_prompt_format {
    const lk_model *model;
    bool chat; /* use the model's chat template */
};

/* The chat format if the model has a template, else the plain format. */
struct lk_prompt_format lk_prompt_format_of(const lk_model *model);

/* The tokens of an item: head, tail and, if the item has one, the right answer. */
struct lk_item_tokens {
    int32_t *tok; /* [n_head + n_tail + n_answer] */
    size_t n_head, n_tail, n_answer;
};

/* Tokenize an item. Head and tail have at least one token each. Free with lk_item_tokens_free. */
lk_status lk_item_tokenize(const struct lk_prompt_format *format, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err);
void lk_item_tokens_free(struct lk_item_tokens *tokens);

/* Count the tokens of head and tail. */
lk_status lk_item_length(const struct lk_prompt_format *format, const struct lk_item *item,
                         size_t *n_tok, lk_err *err);

/* Score the text of an answer, 0 to 1. */
double lk_item_score(const struct lk_item *item, const char *text);

/* ---- items of a requested length ----
 *
 * Long items consist of units (sentences, words, documents).
 * Their length is counted in tokens of the evaluated model. */

/* Build an item of n units. The same n gives the same item; more units give more tokens. */
typedef lk_status (*lk_make_item_fn)(void *user, size_t n_unit, struct lk_arena *arena,
                                     struct lk_item *item, lk_err *err);

struct lk_fit_opts {
    lk_make_item_fn make;
    void *user;
    size_t min_unit, max_unit; /* limits of the number of units */
    size_t max_tok;            /* of the item and its answer (n_generate) together */
};

/* Build the longest item that fits, to within two units. Its texts stay in `arena`. LK_E_ARG if
 * min_unit units do not fit. *n_unit and *n_tok (each may be NULL): its units, and its tokens
 * without the answer. */
lk_status lk_fit_length(const struct lk_fit_opts *fit, const struct lk_prompt_format *format,
                        struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                        lk_err *err);

/* ---- the items of a task ---- */

struct lk_items {
    struct lk_arena arena; /* its ledger is set before the first use */
    struct lk_item *item;  /* [n], in the arena, like all that they point to */
    size_t n;
};

/* What items are made for. */
struct lk_items_opts {
    const struct lk_task_env *env;
    struct lk_prompt_format format;
    size_t n_ctx; /* maximum number of tokens of an item and its answer */
};

/* Make the items of a task. LK_E_ARG if a required option is missing or insufficient. LK_E_IO and
 * LK_E_FORMAT name the file and the line. The caller frees out->arena, even after a failure. */
typedef lk_status (*lk_make_items_fn)(const struct lk_items_opts *opts, struct lk_items *out,
                                      lk_err *err);

/* Allocate n empty items. items->n stays 0. */
lk_status lk_items_alloc(struct lk_items *items, size_t n, lk_err *err);

/* What varies between the generated items of a grid. */
struct lk_grid_point {
    size_t part, round;
    size_t length;     /* maximum number of tokens of the item and its answer */
    size_t n_question; /* about its document; 0: one */
    double depth;      /* 0 to 1; < 0 if the grid has no depths */
    struct lk_rng rng; /* of this item alone */
    const void *user;  /* the grid's */
};

struct lk_item_grid {
    size_t n_part;             /* kinds of items */
    size_t n_depth;            /* depths from 0 to 1 in equal steps; 0: no depths */
    size_t n_round;            /* rounds without a limit; with --quick there is one sweep */
    size_t min_unit, max_unit; /* units per item, see lk_make_item_fn */
    lk_make_item_fn make;      /* its user is the item's struct lk_grid_point */
    const void *user;
};

/* The i-th point of a grid. */
struct lk_grid_point lk_grid_point_at(const struct lk_item_grid *grid,
                                      const struct lk_items_opts *opts, size_t i);

/* Generate the items of a grid. LK_E_ARG if max_unit units are too few for a length. */
lk_status lk_items_generate(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err);

/* ---- running ----
 *
 * Items are put to a backend, answered greedily in the model's own words, and scored. The
 * likelihood of the right answer is measured too. It distinguishes caches even if a small model is
 * always wrong or always right.
 *
 * Several questions about a context start from the same cache: the one that its prompt left. Their
 * scores are means.
 *
 * Fields of a record: "part", "length", "depth", "prompt" ("chat" or "plain"), "n_head", "n_tail",
 * "answer" (the text), the item's scores, and "nll" (nats per token of the right answer). */

/* What the task's `arg` points to. */
struct lk_question_kind {
    lk_make_items_fn make;
    int32_t n_ctx, n_ctx_quick; /* defaults; limited by the model's trained context */
};

/* The functions of struct lk_task. LK_QUESTION_FUNCTIONS initializes its fields. */
lk_status lk_question_open(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err);
void lk_question_close(void *state);
void lk_question_key(const void *state, size_t i, char *key, size_t cap);
double lk_question_cost(const void *state, size_t i);
lk_status lk_question_prompt(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err);
lk_status lk_question_run(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                          json_t *record, lk_err *err);
lk_status lk_question_summarize(const void *state, const json_t *records, const json_t *full,
                                struct lk_task_result *result, lk_err *err);

#define LK_QUESTION_FUNCTIONS                                                                      \
    .open = lk_question_open, .close = lk_question_close, .key = lk_question_key,                  \
    .cost = lk_question_cost, .prompt = lk_question_prompt, .run = lk_question_run,                \
    .summarize = lk_question_summarize

#endif
