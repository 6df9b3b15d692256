/* The backend that is a lowkey session with a recipe. */
#ifndef LK_EVAL_BACKEND_LOWKEY_H
#define LK_EVAL_BACKEND_LOWKEY_H

#include "eval/backend_ops.h"

extern const struct lk_backend_ops lk_backend_lowkey;

/* The session of a backend; NULL if the backend is libllama's. Borrowed. */
lk_session *lk_backend_session(const struct lk_backend *backend);

#endif
