/* Drafts of a smaller model with the same vocabulary: its most probable tokens, while it is rather
 * sure (Leviathan, Kalman and Matias 2023). It has a session of its own, with an f16 cache, which
 * can be cut back to any length. */
#ifndef LK_ENGINE_DRAFT_MODEL_H
#define LK_ENGINE_DRAFT_MODEL_H

#include "engine/draft_source.h"

struct lk_model;

/* `draft` is borrowed. LK_E_ARG if the vocabularies differ, LK_E_UNSUPPORTED if `draft` has
 * recurrent layers, and errors of lk_session_new. */
lk_status lk_draft_model_open(struct lk_draft_source *out, const struct lk_session *session,
                              struct lk_model *draft, lk_err *err);

#endif
