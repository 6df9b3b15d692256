/* Prefill of a job's prompt in its slot. Between chunks the server does other work. */
#ifndef LK_SERVE_SLOT_PREFILL_H
#define LK_SERVE_SLOT_PREFILL_H

#include "serve/slots.h"

struct lk_slot_prefill {
    struct lk_slots *slots;
    struct lk_job *job;           /* its slot and tokens are set */
    bool (*on_chunk)(void *user); /* called after every chunk; false cancels the prefill */
    void *user;
    bool timed_out; /* output: the time limit of the job was exceeded */
    /* Private. */
    size_t n_target;      /* the session will hold this many tokens after the current part */
    double last_progress; /* when the last progress event was pushed */
};

/* Prefill job->tok. If job->n_prefix is set, this takes two parts, and a copy of the session is
 * kept in between. Sets n_reused and prompt_s of the result. LK_E_CANCELLED: on_chunk returned
 * false, the completion is over, or the time limit was exceeded. Other errors as for
 * lk_session_sync. After an error the session holds the tokens processed so far, or is empty. */
lk_status lk_slot_prefill_run(struct lk_slot_prefill *prefill, lk_err *err);

/* After a prefill that failed: update the slot to the tokens that its session holds, so that they
 * can be reused. */
void lk_slot_prefill_keep_partial(struct lk_slots *slots, const struct lk_job *job);

#endif
