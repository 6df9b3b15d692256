/* How many tokens to draft: as many as make the most tokens per second.
 *
 * With n drafts that are right with probability p each, if the ones before are, a pass keeps
 *
 *     1 + p + p^2 + ... + p^n  tokens in  T(other + 1 + n)  seconds
 *
 * p is counted for each kind of draft, T(rows) is measured. Drafting itself takes no time.
 * Evidence fades, so that drafts are tried again after they did not pay for some time. */
#ifndef LK_ENGINE_DRAFTER_H
#define LK_ENGINE_DRAFTER_H

#include "base/err.h"
#include "engine/ngram_index.h"

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

/* ---- drafts from the text ----
 *
 * Drafts from the text: the tokens that followed the last n-gram when it occurred before ("prompt
 * lookup decoding", Saxena 2023). The pace is kept for each length of the match. They cost
 * nothing. */

struct lk_session;

struct lk_draft_lookup {
    struct lk_ngram_index index;
    uint64_t n_cut; /* of the session when its tokens were added */
};

/* Memory is counted by the session's model. LK_E_NOMEM. */
lk_status lk_draft_lookup_init(struct lk_draft_lookup *d, const struct lk_session *session,
                               lk_err *err);
void lk_draft_lookup_free(struct lk_draft_lookup *d, struct lk_ledger *ledger);

/* The kind of drafts after the session's tokens and `next`, for struct lk_draft_pace: 0 to 4 if 2,
 * 3, 4, 8 or 16 tokens, or more, are the same as before; -1: none. Then the n drafts; returns their
 * number. */
int lk_draft_lookup_kind(struct lk_draft_lookup *d, const struct lk_session *session, int32_t next);
size_t lk_draft_lookup_find(const struct lk_draft_lookup *d, const struct lk_session *session,
                            int32_t next, int32_t *out, size_t n);

#endif
