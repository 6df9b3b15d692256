/* The scheduler: the thread that owns all sessions. It admits jobs when there is memory for them,
 * prefills their prompts, and decodes all of them in batched steps.
 *
 *   waiting -> admitted if a place and memory are free -> prefill -> decoding -> done
 *                                                            |        |    ^
 *   other jobs decode between the chunks of a prefill -------+        v    |
 *                                                                    parked
 *
 * Prompts are prefilled one after the other. Between the chunks of one, a prompt that is much
 * shorter than what is left of it may be prefilled, as a call within a call: the longer one goes on
 * when the shorter one is done, with the same bits. Its memory is reserved like that of each job.
 *
 * A job is parked while its client does not read: it keeps its session, but not its place. */
#ifndef LK_SERVE_SCHEDULER_H
#define LK_SERVE_SCHEDULER_H

#include "serve/disk.h"

/* The turns of several schedulers on the same processors: one after the other computes, first come,
 * first served. */
struct lk_turn {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_taken,
        n_given; /* numbers of the last one in the line, and of the last one that is done */
};
void lk_turn_init(struct lk_turn *turn);
void lk_turn_destroy(struct lk_turn *turn);

struct lk_scheduler;

/* Start the thread. `opts` and `metrics` are borrowed until lk_scheduler_stop. LK_E_NOMEM, and the
 * errors of lk_disk_start. */
lk_status lk_scheduler_start(struct lk_scheduler **out, const struct lk_server_opts *opts,
                             struct lk_metrics *metrics, lk_err *err);

/* Queue all jobs of a completion. If the queue is full, a client with more waiting jobs loses its
 * newest request. False: see `error`. 429: the queue is full. 503: the server is stopping. */
bool lk_scheduler_submit(struct lk_scheduler *scheduler, struct lk_completion *completion,
                         struct lk_api_error *error);

/* For the HTTP thread: end all jobs of a completion that was submitted, and release it. Jobs that
 * wait leave the queue at once: the memory of requests without a client does not keep others out
 * during a long step. */
void lk_scheduler_abandon(struct lk_scheduler *scheduler, struct lk_completion *completion);

/* Copy the state of up to `max` slots, at most 0.1 s old while the thread works. Returns their
 * number. *n_waiting: jobs in the queue. */
size_t lk_scheduler_snapshot(struct lk_scheduler *scheduler, struct lk_slot_snapshot *snapshot,
                             size_t max, size_t *n_waiting);

/* The sessions on disk; NULL if the server has no session directory. */
struct lk_disk *lk_scheduler_disk(struct lk_scheduler *scheduler);

/* Fail all completions with 503, and refuse new ones. Sessions stay until lk_scheduler_stop. */
void lk_scheduler_close(struct lk_scheduler *scheduler);

/* Close, write sessions to the store, and end the thread. Other threads may still call the
 * functions above; new requests are refused. */
void lk_scheduler_finish(struct lk_scheduler *scheduler);

/* Finish, and free everything. NULL is allowed. */
void lk_scheduler_stop(struct lk_scheduler *scheduler);

#endif
