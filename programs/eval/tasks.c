/* The table of tasks and of groups of tasks. */
#include "eval/tasks.h"

#include "eval/task_list.h"

#include <string.h>

static const struct lk_task *const task_table[] = {
    &lk_task_text,    &lk_task_agree, &lk_task_bytes, &lk_task_needle,
    &lk_task_passkey, &lk_task_vt,    &lk_task_fwe,   &lk_task_qa,
};

static const struct {
    const char *name, *task[8];
} group_table[] = {
    {"ruler", {"vt", "fwe", "qa"}},
};

enum {
    N_TASK = sizeof task_table / sizeof task_table[0],
    N_GROUP = sizeof group_table / sizeof group_table[0],
    MAX_GROUP_TASKS = sizeof group_table[0].task / sizeof group_table[0].task[0],
};

const struct lk_task *lk_task_at(size_t i) { return i < N_TASK ? task_table[i] : NULL; }

const struct lk_task *lk_task_find(const char *name) {
    for (size_t i = 0; i < N_TASK; i++)
        if (strcmp(task_table[i]->name, name) == 0) return task_table[i];
    return NULL;
}

const char *lk_task_group_name(size_t i) { return i < N_GROUP ? group_table[i].name : NULL; }

const struct lk_task *lk_task_in_group(const char *name, size_t i) {
    for (size_t g = 0; g < N_GROUP; g++)
        if (strcmp(group_table[g].name, name) == 0 && i < MAX_GROUP_TASKS && group_table[g].task[i])
            return lk_task_find(group_table[g].task[i]);
    return NULL;
}
