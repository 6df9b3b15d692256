/* Beginnings that requests have in common: the same instructions, another question.
 *
 *   a conversation held    | instructions | question | answer |
 *   a request              | instructions | another question |
 *   it is read in two parts               ^ and a copy of the session is kept here, which shares its blocks
 *   the next one           | instructions | a third question |   begins with a copy of what was kept
 *
 * A cache that codes its rows cannot be cut back to where two texts part, so the second request is the one
 * that pays for the third. */
#ifndef LK_SERVE_PREFIX_H
#define LK_SERVE_PREFIX_H

#include "serve/slots.h"

enum { LK_MIN_PREFIX = 256 }; /* tokens that are worth a session of their own */

/* How a job may begin. */
struct lk_start {
    struct lk_serve_slot *take; /* an idle slot whose session goes on, cut back by a little where it
                                     must be; NULL: a new one */
    struct lk_serve_slot
        *copy;     /* the slot that the new one's session begins as a copy of; or NULL */
    bool whole;    /* the copy is not cut back: what it shares it shares for good */
    size_t n_keep; /* tokens of the prompt after which a copy is worth keeping; or 0 */
};

/* Choose among the slots. The job's tokens are chosen with `take` where that is a chat that goes on. */
struct lk_start lk_prefix_start(struct lk_serve_slots *slots, struct lk_job *job);

/* lk_serve_slots_make_room for a job that begins so. What it begins as a copy of stays, and what it will share with
 * that for good is there already. */
enum lk_room lk_prefix_make_room(struct lk_serve_slots *slots, const struct lk_start *start,
                                 uint64_t need);

/* The slot's session, at work, stands after tok[0..n_tok): keep a copy, if there is room for one. */
void lk_prefix_keep(struct lk_serve_slots *slots, struct lk_serve_slot *slot, const int32_t *tok,
                    size_t n_tok);

#endif
