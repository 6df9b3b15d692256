/* How many tokens to draft: as many as make the most tokens per second.
 *
 * With n drafts that are right with probability p each, if the ones before are, a pass keeps
 *
 *     1 + p + p^2 + ... + p^n  tokens in  T(other + 1 + n)  seconds
 *
 * p is counted for each kind of draft, T(rows) is measured. Drafting itself takes no time.
 * Evidence fades, so that drafts are tried again after they did not pay for some time. */
#ifndef LK_ENGINE_DRAFT_PACE_H
#define LK_ENGINE_DRAFT_PACE_H

#include <stddef.h>
#include <stdint.h>

enum {
    LK_DRAFT_KINDS = 5, /* kinds of drafts, which are right with different probabilities */
    LK_PACE_SIZES = 11, /* passes of 1, 2, 4, ... 1024 rows */
};

struct lk_draft_pace {
    struct lk_draft_evidence {
        double n_right, n; /* drafts that were right, of all that were judged; both fade */
    } kind[LK_DRAFT_KINDS];
    double seconds[LK_PACE_SIZES];    /* of a pass of 2^i rows; 0: not measured lately */
    uint64_t measured[LK_PACE_SIZES]; /* pass of the last measurement */
    uint64_t n_pass;
};

/* Seconds of a pass of n_row rows, as far as it is known; in some unit before the first
 * measurement. */
double lk_draft_pace_seconds(const struct lk_draft_pace *pace, size_t n_row);

/* The number of drafts of that kind, at most max, for a pass with n_other rows of other sessions.
 * These may have to wait for at most half as long again because of the drafts. */
size_t lk_draft_pace_choose(struct lk_draft_pace *pace, int kind, size_t max, size_t n_other);

/* A pass took so long. */
void lk_draft_pace_measure(struct lk_draft_pace *pace, size_t n_row, double seconds);

/* Of n drafts of that kind the first n_right were right. */
void lk_draft_pace_judge(struct lk_draft_pace *pace, int kind, size_t n, size_t n_right);

#endif
