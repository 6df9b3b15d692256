/* Creating sessions on the ranks of a cluster. */
#ifndef LK_ENGINE_SESSION_H
#define LK_ENGINE_SESSION_H

#include "engine/session_state.h"

/* lk_session_new, and in a cluster the choice whether ranks divide the session's rows. whole: every
 * rank holds all rows, and the ranks exchange nothing. */
lk_status lk_session_new_on_ranks(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                  const lk_session_opts *opts, bool whole, lk_err *err);

#endif
