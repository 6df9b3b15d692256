/* Evaluation of tokens of one or several sessions in one pass. */
#ifndef LK_ENGINE_BATCH_H
#define LK_ENGINE_BATCH_H

#include "engine/session_state.h"
#include "lowkey_serve.h"

struct lk_batch {
    struct lk_ledger ledger; /* scratch */
    struct lk_pass pass;
};

/* lk_batch_eval in the memory of `pass`, for entries that may be evaluated together and have no
 * error yet. */
lk_status lk_eval_entries(struct lk_pass *pass, lk_batch_entry *entry, size_t n, lk_err *err);

/* Build the pass of the entries without an error. LK_E_NOMEM. */
lk_status lk_batch_build(struct lk_pass *pass, lk_batch_entry *entry, size_t n, lk_err *err);

/* Evaluate the tokens from the session's length to n_tok, in chunks that attend to the cache. Calls
 * the session's progress callback. Errors as lk_session_eval; the session then holds a prefix of
 * tok. */
lk_status lk_session_extend(struct lk_session *session, const int32_t *tok, size_t n_tok,
                            lk_err *err);

#endif
