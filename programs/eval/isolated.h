/* An item in a process of its own, so that the memory it took can be told from what else was held. */
#ifndef LK_EVAL_ISOLATED_H
#define LK_EVAL_ISOLATED_H

#include "eval/task.h"

/* What runs in the child; `user` as given. */
typedef lk_status (*lk_isolated)(void *user, json_t *record, lk_err *err);

/* Run `work` in a child and bring its record back. Only where this process has no other threads. LK_E_IO
 * where the child was ended by a signal. */
lk_status lk_isolated_run(lk_isolated work, void *user, json_t *record, lk_err *err);

#endif
