/* The reading of a prompt: its session is made to stand after it, and between portions the server does other things. */
#ifndef LK_SERVE_READING_H
#define LK_SERVE_READING_H

#include "serve/slots.h"

struct lk_reading {
    struct lk_serve_slots *slots;
    struct lk_job *job;          /* with its slot and its tokens */
    bool (*between)(void *user); /* after every portion; false ends the reading */
    void *user;
    bool late; /* told: the job's time was over */
    /* Its own. */
    size_t n_tok; /* of the part under way and those before */
    double told;  /* moment of the last progress */
};

/* Read all of the prompt, in two parts where a copy of the session is kept in between (job->n_keep). The outcome's
 * n_reused and prompt_s are set. LK_E_CANCELLED: `between` said so, nobody listens, or it is late; and the errors of
 * lk_session_sync. The session stands after what was read then, or is empty. */
lk_status lk_reading_run(struct lk_reading *reading, lk_err *err);

/* After a reading that ended early: note what the session stands after, an earlier conversation perhaps, so that it
 * need not be read again. */
void lk_reading_keep(struct lk_serve_slots *slots, const struct lk_job *job);

#endif
