/* The tasks, each defined in its task_NAME.c. */
#ifndef LK_EVAL_TASK_LIST_H
#define LK_EVAL_TASK_LIST_H

#include "eval/task.h"

extern const struct lk_task lk_task_text, lk_task_agree, lk_task_bytes;
extern const struct lk_task lk_task_needle, lk_task_passkey, lk_task_vt, lk_task_fwe, lk_task_qa;

#endif
