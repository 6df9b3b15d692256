/* Runs one item in a process of its own, so that its memory can be measured separately. */
#ifndef LK_EVAL_ISOLATED_H
#define LK_EVAL_ISOLATED_H

#include "base/err.h"

#include <jansson.h>

/* Runs in the child process and fills `record`. */
typedef lk_status (*lk_isolated_fn)(void *user, json_t *record, lk_err *err);

/* Run `work` in a child process and copy its record, or its error. The calling process must have no
 * other threads. LK_E_IO if a signal terminated the child. */
lk_status lk_isolated_run(lk_isolated_fn work, void *user, json_t *record, lk_err *err);

#endif
