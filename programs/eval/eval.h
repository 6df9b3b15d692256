/* Evaluation: tasks x backends x items, compared with the full cache, into a results file.
 *
 * The full cache of a recipe is lowkey's f16, the full cache of a llama.cpp type is libllama's f16.
 * They are added if they were not requested. What the results file already contains is not run
 * again. */
#ifndef LK_EVAL_EVAL_H
#define LK_EVAL_EVAL_H

#include "base/err.h"
#include "eval/results.h"
#include "eval/task.h"

#include <jansson.h>

enum { LK_MAX_EVAL_TASKS = 64, LK_MAX_EVAL_KV = 64 };

struct lk_eval {
    const struct lk_task *const *task; /* [n_task] all different */
    const char *const *kv;             /* [n_kv] recipes and llama.cpp:TYPE */
    size_t n_task, n_kv;
    struct lk_model_pair models; /* path and opts are set; opened when first needed */
    struct lk_eval_opts opts;
    struct lk_results_file *results;
    /* Called often during evaluation. done and total are estimated costs in tokens. False cancels.
     * May be NULL. */
    bool (*progress)(void *user, const char *task, const char *kv, double done, double total);
    void *user;
};

/* Run everything that is not in the results yet. After a failure they contain what was finished. */
lk_status lk_eval_run(struct lk_eval *eval, lk_err *err);

/* List the backends of a task in the order of the results, full caches first: kv
 * [LK_MAX_EVAL_KV]. Returns their number. */
size_t lk_eval_list_kv(const struct lk_eval *eval, const struct lk_task *task, const char **kv);

/* The header of a run, the first line of its results: model, machine, options. `command`: the
 * command line. NULL if a file cannot be read or there is no memory. Owned. */
json_t *lk_run_header(const struct lk_eval *eval, const char *command, lk_err *err);

/* ---- the table of tasks ---- */

/* The task with a name; NULL if there is none. */
const struct lk_task *lk_task_find(const char *name);

/* The i-th task; NULL past the last. */
const struct lk_task *lk_task_at(size_t i);

/* The name of the i-th group, such as "choice"; NULL past the last. */
const char *lk_task_group_name(size_t i);

/* The i-th task of a group; NULL past the last, and if there is no such group. */
const struct lk_task *lk_task_in_group(const char *name, size_t i);

#endif
