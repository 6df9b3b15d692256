/* Tasks: what subjects are asked, and how their answers become figures.
 *
 *   open       makes the items: numbered questions, the same ones for the same model, options and data
 *   run        puts one item to one subject; what came of it is a record, a JSON object
 *   summarise  turns the records of one subject into metrics, series and heat maps
 *
 * Records are written to the results file as they come and are all that summarise sees, so that a run can
 * go on where an earlier one was ended. To add a task, write task_NAME.c with its `struct lk_task` and add
 * it to the table in tasks.c. */
#ifndef LK_EVAL_TASK_H
#define LK_EVAL_TASK_H

#include "eval/subject.h"

#include <jansson.h>

/* What a run is made with; all borrowed, and the same for all its tasks. */
struct lk_eval_opts {
    const char *text_path, *text; /* --text and its contents, or NULL */
    size_t text_len;
    const char *data; /* --data: a folder with data sets, or NULL */
    size_t limit;     /* most items of a task; 0: the task's own choice */
    uint64_t seed;
    int32_t n_ctx; /* 0: the task's own choice */
    size_t shots;  /* solved questions before a question with choices */
    bool quick;    /* few and short items */
};

/* What a task is opened with. */
struct lk_task_env {
    const struct lk_task *task;
    const struct lk_eval_opts *opts;
    const lk_model *model; /* NULL where the task runs in processes of its own */
};

/* What open gives. */
struct lk_task_set {
    void *state;
    size_t n_item;
    int32_t n_ctx; /* tokens that a subject must hold for any of the items */
};

struct lk_result; /* stats.h */

struct lk_task {
    const char *name, *summary;
    const void *arg;  /* for tasks that share their functions */
    bool own_process; /* each item on each subject runs in a process of its own */
    bool wants_floor; /* with weights as shipped, llama.cpp:plain is measured too */

    /* LK_E_ARG, LK_E_IO or LK_E_FORMAT for missing or bad data, with what to do about it. */
    lk_status (*open)(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err);
    void (*close)(void *state);

    /* A name of item i that is the same in every run with these options, for example "arc_easy 12". */
    void (*key)(const void *state, size_t i, char *key, size_t cap);

    /* About how many tokens an item takes, for the time left. A generated token counts as eight. */
    double (*cost)(const void *state, size_t i);

    /* What item i has every subject read as a prompt, before run: it is then read once for all recipes. *tok is
     * owned: free(). NULL: run reads everything itself. */
    lk_status (*prompt)(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err);

    /* One item on one subject, which stands behind the item's prompt, or anywhere where it has none. `full`: the record of the same item on the full
     * cache, or NULL where the subject is it. Add fields to `record`; bits_per_value, bytes_per_token and
     * n_tok, as the subject stands afterwards, are added where it has none. */
    lk_status (*run)(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                     json_t *record, lk_err *err);

    /* Instead of run, where subjects are compared position by position: one item on n subjects at once, the
     * full cache first. record: [n]; record[i] belongs to subject[i]. */
    lk_status (*run_group)(void *state, size_t i, struct lk_subject *const *subject, size_t n,
                           json_t *const *record, lk_err *err);

    /* records: an array in the order of items. `full`: those of the full cache, or NULL where these are it. */
    lk_status (*summarise)(const void *state, const json_t *records, const json_t *full,
                           struct lk_result *result, lk_err *err);
};

/* The task of that name, or NULL; the i-th, or NULL past the last. */
const struct lk_task *lk_task_find(const char *name);
const struct lk_task *lk_task_at(size_t i);

/* Names that stand for several tasks ("choice"): the i-th of them, and the i-th task of one; NULL past the last. */
const char *lk_task_group_name(size_t i);
const struct lk_task *lk_task_group(const char *name, size_t i);

/* ---- helpers for open ---- */

/* min(limit or, without one, `usual`, n); with --quick `quick` takes the place of `usual`. 0 means all. */
size_t lk_task_limit(const struct lk_task_env *env, size_t n, size_t usual, size_t quick);

/* LK_E_ARG where --text was not given or is empty. */
lk_status lk_task_need_text(const struct lk_task_env *env, lk_err *err);

/* Path of `file` in --data, into path[cap]; LK_E_ARG where there is no --data, LK_E_IO where it has no such
 * file. `what`: what the file is, for the message. */
lk_status lk_task_data(const struct lk_task_env *env, const char *file, const char *what,
                       char *path, size_t cap, lk_err *err);

/* Tokens of a text as a prompt: the model's begin token, where it wants one, before it. Control tokens that
 * the text spells stay text. *tok is owned: free(). */
lk_status lk_task_tokenize(const lk_model *model, const char *text, size_t len, int32_t **tok,
                           size_t *n_tok, lk_err *err);

/* Text of n tokens. Owned: free(). NULL: no memory. */
char *lk_task_detokenize(const lk_model *model, const int32_t *tok, size_t n);

#endif
