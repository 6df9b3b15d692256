/* The backend that is libllama's own context with a cache type. */
#ifndef LK_EVAL_BACKEND_LLAMA_H
#define LK_EVAL_BACKEND_LLAMA_H

#include "eval/backend_ops.h"

extern const struct lk_backend_ops lk_backend_llama;

#endif
