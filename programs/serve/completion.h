/* A completion: a request while it is answered. The HTTP thread of the connection and the scheduler
 * share it. The scheduler runs its jobs (one per choice) and pushes events; the HTTP thread pops
 * them. The event ring is bounded: a job whose completion has no room is skipped in a step. */
#ifndef LK_SERVE_COMPLETION_H
#define LK_SERVE_COMPLETION_H

#include "base/clock.h"
#include "lowkey_draft.h"
#include "serve/budget.h"
#include "serve/detokenizer.h"
#include "serve/request.h"
#include "serve/thoughts.h"

#include <pthread.h>
#include <stdatomic.h>

enum lk_event_kind { LK_EVENT_PROGRESS, LK_EVENT_TEXT, LK_EVENT_DONE, LK_EVENT_ERROR };

/* Where the reused tokens of a prompt came from. */
enum lk_prefix_source { LK_PREFIX_NONE, LK_PREFIX_MEMORY, LK_PREFIX_STORE };

/* Token counts, times and memory of a job. */
struct lk_job_result {
    const char *finish;      /* "stop" or "length"; static */
    const char *stop_string; /* the one that ended the answer; borrowed from the request, or NULL */
    size_t n_prompt, n_reused, n_decoded; /* tokens; n_reused of the prompt's were not prefilled */
    enum lk_prefix_source source;         /* of the n_reused tokens */
    size_t n_drafted, n_accepted;         /* drafted tokens, and accepted ones */
    double wait_s, prompt_s, decode_s;
    uint64_t cache_bytes, f16_bytes;
};

struct lk_event {
    enum lk_event_kind kind; /* an error ends the whole completion; see lk_completion.error */
    size_t job;
    struct lk_text_delta delta; /* LK_EVENT_TEXT; owned by the caller of lk_completion_pop */
    /* LK_EVENT_DONE: complete. LK_EVENT_PROGRESS: only n_prompt, n_reused and prompt_s. */
    struct lk_job_result result;
    size_t n_processed; /* LK_EVENT_PROGRESS: prompt tokens processed so far */
};

/* LOADING: the disk thread loads its session. LOADED: that is done, or failed. PARKED: its client
 * does not read, so it gave its place to another job. */
enum lk_job_state {
    LK_JOB_WAITING,
    LK_JOB_LOADING,
    LK_JOB_LOADED,
    LK_JOB_PREFILL,
    LK_JOB_DECODING,
    LK_JOB_PARKED
};

enum { LK_STORE_NAME_LEN = 32 }; /* buffer size for the name of a stored session (serve/store.h) */

/* One answer to one prompt. Owned by the scheduler, except for completion, index and prompt. */
struct lk_job {
    struct lk_job *next; /* in the waiting queue, or in the list of parked jobs */
    struct lk_completion *completion;
    size_t index; /* of the choice */
    struct lk_prompt *prompt;
    /* [n_tok] tokens to prefill: the prompt's, or other tokens of the same text; owned */
    int32_t *tok;
    size_t n_tok;
    char stored[LK_STORE_NAME_LEN]; /* stored session to load for it; empty: none */
    size_t n_processed;             /* of these, during the prefill */
    size_t n_to_prefill;            /* while it waits: of its tokens; 0: not counted yet */
    size_t n_copied;                /* tokens that its session got as a copy of another one */
    size_t n_prefix;                /* keep a copy of the session after this many tokens; 0: none */
    lk_sampler *sampler;            /* a copy of the completion's, made when the job starts */
    lk_drafter *drafter;            /* NULL: without drafts */
    int32_t next_tok;               /* token that was chosen, but not evaluated yet, if has_next */
    bool has_next;
    struct lk_detokenizer detok;
    struct lk_thought_budget thoughts; /* set up when the job starts */
    struct lk_slot *slot;
    enum lk_job_state state;
    struct lk_job_result result;
    bool done, reported; /* finished; and LK_EVENT_DONE was popped. Under the completion's lock */
    double submit_time, start_time, decode_time; /* 0: not yet */
    double blocked_time; /* since when its event ring is full; 0: it is not */
};

/* Size of the event ring. Jobs continue while it is at most half full. For one token, or at its
 * end, a job adds at most two events, and at most LK_MAX_RUNNING jobs run: LK_MAX_PARALLEL, and a
 * quarter of it for other clients. LK_EVENT_DONE and LK_EVENT_ERROR take no space in the ring. */
enum {
    LK_MAX_PARALLEL = 64,
    LK_MAX_RUNNING = LK_MAX_PARALLEL + LK_MAX_PARALLEL / 4,
    LK_EVENT_RING_LEN = 4 * LK_MAX_RUNNING
};

struct lk_completion {
    struct lk_request request;
    struct lk_job *job; /* [n_job] = prompts x n */
    size_t n_job;
    lk_sampler *sampler;     /* what the jobs' samplers are copied from */
    struct lk_charge charge; /* what the request holds of the budget */
    uint64_t client;         /* who asked: an API key or an address (serve/auth.h) */
    pthread_mutex_t lock;    /* of everything below */
    pthread_cond_t changed;
    struct lk_event ring[LK_EVENT_RING_LEN];
    size_t first, n_event;
    struct lk_api_error error; /* status 0: none */
    bool error_reported;       /* LK_EVENT_ERROR was popped */
    _Atomic bool abandoned;    /* the HTTP thread pops no more events */
    _Atomic int percent;       /* of the prompt that is prefilled; -1: in the queue */
    atomic_int refs;
};

/* Create a completion with one job per choice, and the sampler that the jobs copy. On success
 * `request` and `charge` are moved into it; memory for samplers was added to the charge. The caller
 * owns one reference, and after lk_scheduler_submit each job owns another. NULL: see `error`. */
struct lk_completion *lk_completion_new(struct lk_request *request, struct lk_charge *charge,
                                        const struct lk_server_opts *opts,
                                        struct lk_api_error *error);
void lk_completion_release(struct lk_completion *completion);

/* End all jobs of the completion, and release it. */
void lk_completion_abandon(struct lk_completion *completion);

/* Is there room for the next events of a job? */
bool lk_completion_has_room(struct lk_completion *completion);

/* Push a text or progress event. If the ring is full, the event is dropped and freed. So call
 * lk_completion_has_room before a job produces text; progress may be lost. */
void lk_completion_push(struct lk_completion *completion, struct lk_event *event);

/* Mark a job as finished; job->result is then final. */
void lk_completion_finish_job(struct lk_completion *completion, struct lk_job *job);

/* Fail the whole completion. Only the first error counts. */
void lk_completion_fail(struct lk_completion *completion, const struct lk_api_error *error);

/* Is the job's prompt a chat that continues `text`, a text that a session already holds? */
bool lk_job_continues_text(const struct lk_job *job, const struct lk_buf *text);

/* Should the scheduler drop its jobs, because it was abandoned or failed? */
bool lk_completion_is_over(struct lk_completion *completion);

/* Pop the next event: text and progress first, then finished jobs, then the error. False if none
 * arrived within `seconds`. */
bool lk_completion_pop(struct lk_completion *completion, double seconds, struct lk_event *event);

#endif
