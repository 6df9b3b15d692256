/* Tasks: what backends are asked, and how their answers become figures.
 *
 *   open       makes the items: numbered questions, the same for the same model, options and data
 *   run        puts one item to one backend; the outcome is a record, a JSON object
 *   summarize  computes metrics, series and heat maps from the records of one backend
 *
 * Records are written to the results file as they are made, and summarize sees nothing else. So a
 * run can continue where an earlier one stopped. To add a task, write task_NAME.c with its
 * `struct lk_task`, declare it below and add it to the table in eval.c. */
#ifndef LK_EVAL_TASK_H
#define LK_EVAL_TASK_H

#include "eval/backend.h"
#include "eval/stats.h"

/* The options of a run, shared by all its tasks. Everything is borrowed. */
struct lk_eval_opts {
    const char *text_path, *text; /* --text and its contents, or NULL */
    size_t text_len;
    const char *data; /* --data: folder of data sets, or NULL */
    size_t limit;     /* maximum number of items per task; 0: the task's default */
    uint64_t seed;
    int32_t n_ctx;     /* 0: the task's default */
    bool quick;        /* few and short items */
    bool plain;        /* questions without the model's chat template */
    size_t min_answer; /* tokens that a generated answer has at least */
    size_t n_question; /* about each document, all of n_ctx tokens; 0: one, of several lengths */
};

/* What a task is opened with. */
struct lk_task_env {
    const struct lk_task *task;
    const struct lk_eval_opts *opts;
    const lk_model *model; /* NULL if the task runs in processes of its own */
};

/* An open task: what `open` returns. */
struct lk_open_task {
    void *state;
    size_t n_item;
    int32_t n_ctx; /* context that a backend needs for the longest item */
};

struct lk_task {
    const char *name, *summary;
    const void *arg;      /* for tasks that share their functions */
    bool own_process;     /* every item runs on every backend in a process of its own */
    size_t max_question;  /* about a document; 0: one */
    bool has_noise_floor; /* with the weights as shipped, llama.cpp:plain is measured too */

    /* LK_E_ARG, LK_E_IO or LK_E_FORMAT, with advice, if data is missing or invalid. */
    lk_status (*open)(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err);
    void (*close)(void *state);

    /* The name of item i, the same in every run with these options: "arc_easy 12". */
    void (*key)(const void *state, size_t i, char *key, size_t cap);

    /* Estimated cost of item i, in tokens, for the progress display. A generated token counts
     * LK_GENERATED_TOKEN_COST. */
    double (*cost)(const void *state, size_t i);

    /* The prompt of item i, which every backend prefills before `run`. All recipes share one
     * prefill. *tok is owned: free(). NULL: run evaluates everything itself. */
    lk_status (*prompt)(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err);

    /* Run one item on one backend. If the item has a prompt, the backend's context is that prompt,
     * else it is unspecified. `full`: the record of this item on the full cache; NULL if `backend`
     * is the full cache. Adds fields to `record`. The caller adds bits_per_value, bytes_per_token
     * and n_tok of the final state if they are missing. */
    lk_status (*run)(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                     json_t *record, lk_err *err);

    /* Instead of `run`, for tasks that compare backends position by position: run one item on n
     * backends, the full cache first. record[i] belongs to backend[i]. */
    lk_status (*run_group)(void *state, size_t i, struct lk_backend *const *backend, size_t n,
                           json_t *const *record, lk_err *err);

    /* records: an array in the order of items. `full`: the records of the full cache; NULL if
     * `records` are the full cache's. */
    lk_status (*summarize)(const void *state, const json_t *records, const json_t *full,
                           struct lk_task_result *result, lk_err *err);
};

enum { LK_GENERATED_TOKEN_COST = 8 };

/* ---- helpers for tasks ---- */

/* Number of items out of n: the --limit, or without one `usual` (with --quick: `quick`), but n at
 * most. 0 means all. */
size_t lk_task_limit(const struct lk_task_env *env, size_t n, size_t usual, size_t quick);

/* Context length: -c, or without it `usual` (with --quick: `quick`). */
size_t lk_task_n_ctx(const struct lk_task_env *env, size_t usual, size_t quick);

/* LK_E_ARG if --text is missing or empty. */
lk_status lk_task_require_text(const struct lk_task_env *env, lk_err *err);

/* Tokenize a text as a prompt: the model's begin-of-sequence token, if it uses one, and the text.
 * Control tokens spelled in the text stay text. *tok is owned: free(). */
lk_status lk_task_tokenize(const lk_model *model, const char *text, size_t len, int32_t **tok,
                           size_t *n_tok, lk_err *err);

/* Like lk_task_tokenize, for --text. LK_E_ARG if it has fewer than n_ctx tokens. */
lk_status lk_task_tokenize_text(const struct lk_eval_opts *opts, const lk_model *model,
                                size_t n_ctx, int32_t **tok, size_t *n_tok, lk_err *err);

/* Add the fields about the cache that every record has, unless it has them. */
void lk_record_cache_stats(json_t *record, const struct lk_backend *backend);

/* The text of n tokens. If it is not valid UTF-8, as when a token ends within a character, every
 * byte from 0x80 on becomes '?'. Owned: free(). NULL if there is no memory. */
char *lk_task_detokenize(const lk_model *model, const int32_t *tok, size_t n);

/* The tasks of task_*.c. */
extern const struct lk_task lk_task_text, lk_task_agree, lk_task_bytes;
extern const struct lk_task lk_task_needle, lk_task_passkey, lk_task_vt, lk_task_fwe, lk_task_qa;

#endif
