/* lowkey_draft.h - drafts: guessing tokens, and evaluating them in one pass (docs/sessions.md).
 *
 *   lk_drafter  guesses what follows the text of one session.
 *
 * The rules of lowkey.h hold here too. */
#ifndef LOWKEY_DRAFT_H
#define LOWKEY_DRAFT_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_drafter lk_drafter;

/* Maximum number of tokens of a pass: one that is sure, and drafts. */
enum { LK_DRAFT_MAX = 31 };

/* How many of n_tok tokens, 1 to 31, an lk_session_eval with `all` may append so that all
 * but the first can be removed again. Their logits equal evaluating them one by one, up to
 * rounding. A pass ends before rows age, and has at most 4 tokens with `read` or `skip`. *why (may
 * be NULL): why full levels of this recipe never allow more than 1, static; NULL if they do. */
size_t lk_session_draftable(const lk_session *session, size_t n_tok, const char **why);

/* Guesses what follows the text of `session`: what followed the last 2 to 4 tokens when these
 * occurred before. The session is not used after it was freed. *out is owned: lk_drafter_free.
 * LK_E_UNSUPPORTED if the recipe allows no drafts; LK_E_NOMEM. */
lk_status lk_drafter_new(lk_drafter **out, lk_session *session, lk_err *err);
void lk_drafter_free(lk_drafter *drafter);

/* Append drafts to pass[0], which follows the session's tokens: as many as earlier passes suggest,
 * n_max tokens in all, in a pass with n_other tokens of other sessions. Returns the number of
 * tokens, at least 1. To decode with drafts, repeat:
 *
 *   1. lk_drafter_next; pass[0] is the token that was chosen last
 *   2. lk_session_eval of the pass, with `all`
 *   3. lk_sampler_next after each of its tokens, as long as it is the next draft
 *   4. lk_session_truncate, so that the n_kept tokens before the first wrong draft remain
 *   5. lk_drafter_report, with the seconds of 2 and 4
 *
 * All choices are the same as in decoding one by one, up to the rounding of logits. */
size_t lk_drafter_next(lk_drafter *drafter, int32_t *pass, size_t n_max, size_t n_other);

/* Report a pass of n_tok tokens, whose first n_kept remain, that took `seconds`. */
void lk_drafter_report(lk_drafter *drafter, size_t n_tok, size_t n_kept, size_t n_other,
                       double seconds);

/* Passes that were reported, and their drafts. */
typedef struct {
    uint64_t n_pass, n_drafted, n_accepted;
} lk_draft_stats;
lk_draft_stats lk_drafter_get_stats(const lk_drafter *drafter);

/* Memory that drafts need at most, in a session of n_ctx tokens with passes
 * of up to n_tok tokens: logits, the index of the text, and what recurrent layers need
 * to go back. */
uint64_t lk_drafter_bytes(const lk_model *model, int32_t n_ctx, size_t n_tok);

#ifdef __cplusplus
}
#endif
#endif
