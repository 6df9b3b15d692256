/* A few threads that do the work of requests outside the model: parsing, tokenizing, compiling
 * grammars. Connections have a thread each, so without this pool hundreds of them would compute at
 * the same time. Tasks wait in a queue, first come, first served. One thread takes only small
 * tasks, so that they do not wait for large ones. */
#ifndef LK_SERVE_WORKERS_H
#define LK_SERVE_WORKERS_H

#include "lowkey.h"

struct lk_workers;

/* Start n threads. The caller owns *out and ends it with lk_workers_stop. LK_E_NOMEM. */
lk_status lk_workers_start(struct lk_workers **out, size_t n, lk_err *err);

/* Run fn(arg) on a worker and wait until it has returned. While the task waits in the queue,
 * `keep_waiting` is called about four times a second; if it returns false, the task is removed and
 * the result is false, like when the pool is stopping. A task that has started is always waited
 * for, so it must be bounded. Any thread may call this. */
bool lk_workers_run(struct lk_workers *workers, bool large, void (*fn)(void *arg), void *arg,
                    bool (*keep_waiting)(void *user), void *user);

/* Refuse tasks from now on, those in the queue included. */
void lk_workers_close(struct lk_workers *workers);

/* Close, wait for the running tasks, and free everything. No thread may be in lk_workers_run. NULL
 * is allowed. */
void lk_workers_stop(struct lk_workers *workers);

#endif
