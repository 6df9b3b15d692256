/* The table of tasks: find them by name, index or group. */
#ifndef LK_EVAL_TASKS_H
#define LK_EVAL_TASKS_H

#include "eval/task.h"

/* The task with a name; NULL if there is none. */
const struct lk_task *lk_task_find(const char *name);

/* The i-th task; NULL past the last. */
const struct lk_task *lk_task_at(size_t i);

/* The name of the i-th group, such as "choice"; NULL past the last. */
const char *lk_task_group_name(size_t i);

/* The i-th task of a group; NULL past the last, and if there is no such group. */
const struct lk_task *lk_task_in_group(const char *name, size_t i);

#endif
