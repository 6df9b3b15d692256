/* The queue of waiting jobs, in the order of arrival. Not thread-safe: the scheduler locks it. */
#ifndef LK_SERVE_QUEUE_H
#define LK_SERVE_QUEUE_H

#include "serve/completion.h"

struct lk_queue {
    struct lk_job *first; /* linked by job->next */
    size_t n;
};

/* Append all jobs of a completion. */
void lk_queue_push(struct lk_queue *queue, struct lk_completion *completion);

/* Take a job out. */
void lk_queue_remove(struct lk_queue *queue, struct lk_job *job);

/* Take out the jobs for which `is_over` returns true; returns them as a list. */
struct lk_job *lk_queue_remove_if(struct lk_queue *queue, bool (*is_over)(void *, struct lk_job *),
                                  void *user);

/* Make room for n jobs of a client among `max`: the client with the most waiting jobs loses its
 * newest request, if it has more than this client would have. So a client that fills the queue does
 * not keep others out. That request fails with `error`; its jobs stay until they are taken out.
 * False: there is no room. */
bool lk_queue_make_room(struct lk_queue *queue, uint64_t client, size_t n, size_t max,
                        const struct lk_api_error *error);

#endif
