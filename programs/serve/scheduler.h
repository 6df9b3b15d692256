/* The one thread that owns all sessions: it begins answers when there is room for them, reads their
 * prompts, and takes all of them one token further in each step.
 *
 *   waiting (first come, first served) -> admitted by bytes -> prompt read -> decoding, step by step -> done
 *                                                |  while a prompt is read, the others decode in slices
 */
#ifndef LK_SERVE_SCHEDULER_H
#define LK_SERVE_SCHEDULER_H

#include "serve/disk.h"

struct lk_scheduler;

/* `opts` and `metrics` are borrowed until lk_scheduler_stop. */
lk_status lk_scheduler_start(struct lk_scheduler **out, const struct lk_serve_opts *opts,
                             struct lk_metrics *metrics, lk_err *err);

/* Queue all answers of a call. False after a fault: the queue is full (429), or the server stops (503). */
bool lk_scheduler_submit(struct lk_scheduler *scheduler, struct lk_call *call,
                         struct lk_fault *fault);

/* Copies of the views of all slots, at most `most`, as they were within the last tenth of a second of work. */
size_t lk_scheduler_look(struct lk_scheduler *scheduler, struct lk_slot_view *view, size_t most,
                         size_t *n_waiting);

/* The sessions on disk; NULL where the server has no folder for them. */
struct lk_disk *lk_scheduler_disk(struct lk_scheduler *scheduler);

/* Fail every call with 503 and take no more; sessions live on until lk_scheduler_stop, which stores those that are to be kept. */
void lk_scheduler_close(struct lk_scheduler *scheduler);
void lk_scheduler_stop(struct lk_scheduler *scheduler);

#endif
