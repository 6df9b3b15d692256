/* The running jobs, which have left the queue. In every step each job in state DECODING gets one
 * more token, or more if it has drafts, in one batched forward pass. Used only by the scheduler's
 * thread. */
#ifndef LK_SERVE_RUNNING_H
#define LK_SERVE_RUNNING_H

#include "lowkey_serve.h"
#include "serve/metrics.h"
#include "serve/slots.h"

struct lk_running {
    const struct lk_server_opts *opts;
    struct lk_metrics *metrics;
    lk_batch *batch;
    struct lk_job *job[LK_MAX_RUNNING]; /* [n], in any order */
    size_t n;
    struct lk_job *parked; /* linked by job->next, the one that is parked longest first */
    size_t n_parked;
};

/* Sample one token for every decoding job whose completion has room, and evaluate them as a batch,
 * with drafts if opts->drafts. A draft is right if it is what is sampled there. Jobs that are
 * complete, have failed or timed out are removed. Returns the number of jobs that have new
 * tokens. */
size_t lk_running_decode_step(struct lk_running *running);

/* End parked jobs whose time is over or whose client is gone, and let those go on whose client has
 * read, while there are places. */
void lk_running_poll_parked(struct lk_running *running);

/* End the job that is parked longest, so that its memory becomes free. False if none is parked for
 * long enough. */
bool lk_running_end_parked(struct lk_running *running);

/* Add a job and make its sampler. LK_E_NOMEM; the job is then still added. */
lk_status lk_running_add(struct lk_running *running, struct lk_job *job, lk_err *err);

/* Remove a job that will not complete. `error` (may be NULL) fails its whole completion. */
void lk_running_fail_job(struct lk_running *running, struct lk_job *job,
                         const struct lk_api_error *error);

#endif
