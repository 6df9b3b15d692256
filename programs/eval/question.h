/* Tasks that ask questions: items (eval/items.h) put to a subject, answered greedily in the model's own
 * words, and scored. Beside the score stands the likelihood of the right answer, which tells caches apart
 * where a small model is always wrong or always right.
 *
 * A record: {"part", "length", "depth", "prompt": "chat" or "plain", "n_head", "n_tail", "answer": the text, the
 * item's scores, "nll": nats for each token of the right answer}. */
#ifndef LK_EVAL_QUESTION_H
#define LK_EVAL_QUESTION_H

#include "eval/items.h"
#include "eval/stats.h"

/* What a task's `arg` points at. */
struct lk_question_kind {
    lk_items_maker make;
    int32_t n_ctx, n_ctx_quick; /* where none is given; no more than the model was trained for */
};

/* The functions of struct lk_task. */
lk_status lk_question_open(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err);
void lk_question_close(void *state);
void lk_question_key(const void *state, size_t i, char *key, size_t cap);
double lk_question_cost(const void *state, size_t i);
lk_status lk_question_prompt(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err);
lk_status lk_question_run(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                          json_t *record, lk_err *err);
lk_status lk_question_summarise(const void *state, const json_t *records, const json_t *full,
                                struct lk_result *result, lk_err *err);

#endif
