/* Predicted memory of a session. */
#ifndef LK_ENGINE_PLAN_H
#define LK_ENGINE_PLAN_H

#include "engine/model.h"

/* lk_plan_make for a process that holds a share of the rows. */
lk_status lk_plan_part(const lk_model *model, const lk_recipe *recipe, const lk_session_opts *opts,
                       struct lk_share share, lk_plan *out, lk_err *err);

#endif
