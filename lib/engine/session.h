/* Creating sessions whose rows are all held here, or divided. */
#ifndef LK_ENGINE_SESSION_H
#define LK_ENGINE_SESSION_H

#include "engine/session_state.h"

/* lk_session_new, with the choice whether several processes divide the session's rows. whole: each
 * of them holds all rows, and they exchange nothing. */
lk_status lk_session_new_held(lk_session **out, lk_model *model, const lk_recipe *recipe,
                              const lk_session_opts *opts, bool whole, lk_err *err);

#endif
