/* Evaluation: tasks x subjects x items, each against the full cache, into a results file.
 *
 * The full cache of a recipe is lowkey's f16, that of a llama.cpp type is libllama's f16; they are added
 * where they were not asked for. What the results file already holds is not run again. */
#ifndef LK_EVAL_EVAL_H
#define LK_EVAL_EVAL_H

#include "eval/results.h"
#include "eval/task.h"

enum { LK_MAX_EVAL_TASKS = 64, LK_MAX_EVAL_KV = 64 };

struct lk_eval {
    const struct lk_task *const *task; /* [n_task] without repetition */
    const char *const *kv;             /* [n_kv] recipes and llama.cpp:TYPE */
    size_t n_task, n_kv;
    struct lk_models models; /* path and opts set; opened when first needed */
    struct lk_eval_opts opts;
    struct lk_results *results;
    /* Called often while subjects read, in a unit that grows evenly with time. False cancels. May be NULL. */
    bool (*progress)(void *user, const char *task, const char *kv, double done, double total);
    void *user;
};

/* Run what is not yet in the results. On failure everything finished is in them. */
lk_status lk_eval_run(struct lk_eval *eval, lk_err *err);

/* The subjects of a task in the order of results: full caches first. kv: [LK_MAX_EVAL_KV]; returns their number. */
size_t lk_eval_subjects(const struct lk_eval *eval, const struct lk_task *task, const char **kv);

/* The line that a results file begins with; NULL: no memory. `command`: as given by the user. Owned. */
json_t *lk_eval_header(const struct lk_eval *eval, const char *command, lk_err *err);

/* A fingerprint of a file: size and a hash of its first and last MiB. out: 40 characters. */
lk_status lk_eval_fingerprint(const char *path, char out[40], lk_err *err);

#endif
