/* Evaluation of the tokens of one session: a step, or a text in chunks through the cache. */
#ifndef LK_ENGINE_EXTEND_H
#define LK_ENGINE_EXTEND_H

#include "engine/session_state.h"

/* Evaluate the tokens from the session's length to n_tok, in chunks that attend to the cache. Calls
 * the session's progress callback. Errors as lk_session_eval; the session then holds a prefix of
 * tok. */
lk_status lk_session_extend(struct lk_session *session, const int32_t *tok, size_t n_tok,
                            lk_err *err);

#endif
