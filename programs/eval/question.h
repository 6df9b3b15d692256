/* Tasks that ask questions: items (eval/items.h) are put to a backend, answered greedily in the
 * model's own words, and scored. The likelihood of the right answer is measured too. It
 * distinguishes caches even if a small model is always wrong or always right.
 *
 * Fields of a record: "part", "length", "depth", "prompt" ("chat" or "plain"), "n_head", "n_tail",
 * "answer" (the text), the item's scores, and "nll" (nats per token of the right answer). */
#ifndef LK_EVAL_QUESTION_H
#define LK_EVAL_QUESTION_H

#include "eval/items.h"

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
