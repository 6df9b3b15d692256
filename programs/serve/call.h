/* A request under way: its answers (jobs), which the scheduler makes, and the events that its connection's
 * thread reads. The queue of events is bounded: a job whose call has no room is passed over. */
#ifndef LK_SERVE_CALL_H
#define LK_SERVE_CALL_H

#include "base/clock.h"
#include "serve/ask.h"
#include "serve/emit.h"

#include <pthread.h>
#include <stdatomic.h>

enum lk_event_kind { LK_EVENT_PROGRESS, LK_EVENT_PIECE, LK_EVENT_DONE, LK_EVENT_FAULT };

/* Where the tokens came from that were not read again. */
enum lk_source { LK_FROM_NOTHING, LK_FROM_MEMORY, LK_FROM_STORE };

/* What an answer took. */
struct lk_outcome {
    const char *finish; /* "stop" or "length"; static */
    size_t n_prompt, n_reused, n_made;
    enum lk_source source; /* of the n_reused tokens */
    double wait_s, prompt_s, decode_s;
    uint64_t cache_bytes, f16_bytes;
};

struct lk_event {
    enum lk_event_kind kind; /* a fault ends the whole call; its text is the call's */
    size_t job;
    struct lk_piece piece; /* LK_EVENT_PIECE; owned by whoever popped it */
    struct lk_outcome
        outcome;   /* LK_EVENT_DONE; while a prompt is read n_prompt, n_reused and prompt_s */
    size_t n_read; /* LK_EVENT_PROGRESS: tokens of the prompt read */
};

/* Loading: its session comes from the disk; loaded: it did, or could not. */
enum lk_job_state {
    LK_JOB_WAITING,
    LK_JOB_LOADING,
    LK_JOB_LOADED,
    LK_JOB_READING,
    LK_JOB_DECODING
};

enum { LK_STORED_NAME = 32 }; /* room for the name of a stored session (serve/store.h) */

/* One answer to one prompt. The scheduler's, but for call, index and prompt. */
struct lk_job {
    struct lk_job *next; /* waiting after this one */
    struct lk_call *call;
    size_t index; /* of the choice */
    const struct lk_prompt *prompt;
    int32_t *tok; /* [n_tok] what is read: the prompt's tokens, or others of the same text; owned */
    size_t n_tok;
    char stored[LK_STORED_NAME]; /* the stored session that is loaded for it; empty: none */
    size_t n_copied; /* tokens that its session had as a copy of another; all: nothing is read */
    size_t n_keep;   /* tokens after which a copy of its session is kept; 0: none */
    lk_sampler *sampler;
    struct lk_emit emit;
    struct lk_serve_slot *slot;
    enum lk_job_state state;
    struct lk_outcome outcome;
    bool done, told;           /* it has ended; its reader knows. Under the call's lock */
    double asked, begun, read; /* moments; 0: not yet */
};

/* Events that wait for their reader. Jobs go on while it is at most half full; in a step each of the call's
 * jobs at work, of which there are LK_MAX_PARALLEL at most, adds two at most. The ends of jobs need no room. */
enum { LK_MAX_PARALLEL = 64, LK_FEED = 4 * LK_MAX_PARALLEL };

struct lk_call {
    struct lk_ask ask;
    struct lk_job *job; /* [n_job] = prompts x n */
    size_t n_job;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    struct lk_event ring[LK_FEED];
    size_t first, n_event;
    struct lk_fault fault;
    bool ended;        /* the event of the fault was given out */
    _Atomic bool gone; /* nobody listens any more */
    atomic_int refs;
};

/* A call with its samplers; `ask` is moved into it on success. Released by the caller and, once it was
 * submitted, by each of its jobs. NULL after a fault. */
struct lk_call *lk_call_new(struct lk_ask *ask, const lk_model *model, struct lk_fault *fault);
void lk_call_release(struct lk_call *call);

/* May a job go on: is there room for its next events? */
bool lk_call_has_room(struct lk_call *call);

/* Give an event, a piece or progress, to the connection. Without room the event is dropped and freed: only
 * progress may be pushed without asking first. */
void lk_call_push(struct lk_call *call, struct lk_event *event);

/* A job has ended; its outcome says how. */
void lk_call_done(struct lk_call *call, struct lk_job *job);

/* End the call with a fault; the first one stays. */
void lk_call_fail(struct lk_call *call, const struct lk_fault *fault);

/* Has the call ended for the scheduler: nobody listens, or it failed? */
bool lk_call_is_over(struct lk_call *call);

/* The next event; false when none came within `seconds`. */
bool lk_call_pop(struct lk_call *call, double seconds, struct lk_event *event);

#endif
