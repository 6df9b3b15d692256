/* Rotation parameters of a model's layers, in the form that caches need (cache/rope.h). */
#ifndef LK_ENGINE_MODEL_ROPE_H
#define LK_ENGINE_MODEL_ROPE_H

#include "engine/model.h"

/* Set model->rope if the model rotates its keys. LK_E_NOMEM. */
lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err);

#endif
