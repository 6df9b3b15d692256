/* The queue of waiting jobs. */
#include "serve/queue.h"

void lk_queue_push(struct lk_queue *q, struct lk_completion *completion) {
    struct lk_job **last = &q->first;
    while (*last) last = &(*last)->next;
    for (size_t i = 0; i < completion->n_job; i++) {
        completion->job[i].submit_time = lk_now();
        *last = &completion->job[i];
        last = &completion->job[i].next;
    }
    *last = NULL;
    q->n += completion->n_job;
}

static bool is_job(void *user, struct lk_job *job) { return job == user; }

void lk_queue_remove(struct lk_queue *q, struct lk_job *job) { lk_queue_remove_if(q, is_job, job); }

struct lk_job *lk_queue_remove_if(struct lk_queue *q, bool (*is_over)(void *, struct lk_job *),
                                  void *user) {
    struct lk_job *removed = NULL;
    for (struct lk_job **at = &q->first; *at;) {
        struct lk_job *job = *at;
        if (!is_over(user, job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        q->n--;
        job->next = removed;
        removed = job;
    }
    return removed;
}

/* Number of jobs that will run: of a client, or of all if `client` is NULL. */
static size_t count_jobs(const struct lk_queue *q, const uint64_t *client) {
    size_t n = 0;
    for (const struct lk_job *job = q->first; job; job = job->next)
        n += (!client || job->completion->client == *client) &&
             !lk_completion_is_over(job->completion);
    return n;
}

bool lk_queue_make_room(struct lk_queue *q, uint64_t client, size_t n, size_t max,
                        const struct lk_api_error *error) {
    while (q->n + n > max && count_jobs(q, NULL) + n > max) {
        struct lk_completion *newest = NULL;
        size_t n_most = count_jobs(q, &client) + n;
        for (struct lk_job *job = q->first; job; job = job->next) {
            size_t n_its = count_jobs(q, &job->completion->client);
            if (lk_completion_is_over(job->completion) || n_its < n_most ||
                (n_its == n_most && !newest))
                continue;
            newest = job->completion;
            n_most = n_its;
        }
        if (!newest) return false;
        lk_completion_fail(newest, error);
    }
    return true;
}
