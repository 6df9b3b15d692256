/* Prefill of a job's prompt in its slot, and prefixes that prompts share. Between chunks the server
 * does other work. */
#ifndef LK_SERVE_SLOT_PREFILL_H
#define LK_SERVE_SLOT_PREFILL_H

#include "serve/slots.h"

struct lk_slot_prefill {
    struct lk_slots *slots;
    struct lk_job *job;           /* its slot and tokens are set */
    bool (*on_chunk)(void *user); /* called after every chunk; false cancels the prefill */
    void *user;
    bool timed_out; /* output: the time limit of the job was exceeded. A stream has none while its
                       prompt is read, and a prompt in parts none before its first one is kept */
    /* Private. */
    size_t n_target;      /* the session will hold this many tokens after the current part */
    double last_progress; /* when the last progress event was pushed */
};

/* Prefill job->tok. If job->n_prefix is set, this takes two parts, and a copy of the session is
 * kept in between. Sets n_reused and prompt_s of the result. LK_E_CANCELLED: on_chunk returned
 * false, the completion is over, or the time limit was exceeded. Other errors as for
 * lk_session_sync. After an error the session holds the tokens processed so far or a prefill that
 * the next one goes on with, or it is empty. */
lk_status lk_slot_prefill_run(struct lk_slot_prefill *prefill, lk_err *err);

/* After a prefill that failed: update the slot to the tokens that its session holds, or whose
 * prefill was cut short, so that they can be reused. */
void lk_slot_prefill_keep_partial(struct lk_slots *slots, const struct lk_job *job);

/* ---- shared prefixes ----
 *
 * Requests with the same instructions but different questions.
 *
 *   a session in memory    | instructions | question | answer |
 *   a second request       | instructions | another question |
 *   is prefilled in two parts             ^ a copy of the session is kept here; it shares blocks
 *   a third request        | instructions | a third question |   starts with a copy of that copy
 *
 * A quantized cache cannot be truncated to the point where two prompts diverge. So the second
 * request does the work that the third one saves. A recipe that evicts rows shares prompts only if
 * they are the same. */

enum {
    LK_SHARED_PREFIX_MIN = 256, /* tokens; shorter prefixes are not worth a session */
    LK_SAME_TEXT_MIN = 16       /* tokens that other tokens of the same text must save */
};

/* How a job gets its session. */
struct lk_slot_source {
    struct lk_slot *reuse;     /* idle slot to continue, truncated if necessary; NULL: a new slot */
    struct lk_slot *copy_from; /* slot to copy into the new one, or NULL */
    bool copy_whole;           /* the copy is not truncated, so it never copies the shared blocks */
    size_t n_prefix; /* keep a copy of the session after this many prompt tokens; 0: no copy */
};

/* Choose a source among the slots. For a chat, job->tok may be set to other tokens of its text,
 * whose first ones the source holds. */
struct lk_slot_source lk_shared_prefix_choose(struct lk_slots *slots, struct lk_job *job);

/* lk_slots_make_room for a job with this source: does not evict the slot to copy from, and does not
 * count the memory that the copy will share with it. */
enum lk_room lk_shared_prefix_make_room(struct lk_slots *slots, const struct lk_slot_source *source,
                                        uint64_t need);

#endif
