/* Shared prefixes: requests with the same instructions but different questions.
 *
 *   a session in memory    | instructions | question | answer |
 *   a second request       | instructions | another question |
 *   is prefilled in two parts             ^ a copy of the session is kept here; it shares blocks
 *   a third request        | instructions | a third question |   starts with a copy of that copy
 *
 * A quantized cache cannot be truncated to the point where two prompts diverge. So the second
 * request does the work that the third one saves. A recipe that evicts rows shares prompts only if
 * they are the same. */
#ifndef LK_SERVE_SHARED_PREFIX_H
#define LK_SERVE_SHARED_PREFIX_H

#include "serve/slots.h"

enum { LK_SHARED_PREFIX_MIN = 256 }; /* shorter prefixes are not worth a session, in tokens */

/* How a job gets its session. */
struct lk_slot_source {
    struct lk_slot *reuse;     /* idle slot to continue, truncated if necessary; NULL: a new slot */
    struct lk_slot *copy_from; /* slot to copy into the new one, or NULL */
    bool copy_whole;           /* the copy is not truncated, so it never copies the shared blocks */
    size_t n_prefix; /* keep a copy of the session after this many prompt tokens; 0: no copy */
};

/* Choose a source among the slots. If it continues a chat, job->tok is set (see lk_slots_match). */
struct lk_slot_source lk_shared_prefix_choose(struct lk_slots *slots, struct lk_job *job);

/* lk_slots_make_room for a job with this source: does not evict the slot to copy from, and does not
 * count the memory that the copy will share with it. */
enum lk_room lk_shared_prefix_make_room(struct lk_slots *slots, const struct lk_slot_source *source,
                                        uint64_t need);

/* The session of a busy slot holds exactly tok[0..n_tok): keep a copy of it, if there is room. */
void lk_shared_prefix_keep(struct lk_slots *slots, struct lk_slot *slot, const int32_t *tok,
                           size_t n_tok);

#endif
