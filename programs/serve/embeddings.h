/* /v1/embeddings: pooled hidden states of the language model. */
#ifndef LK_SERVE_EMBEDDINGS_H
#define LK_SERVE_EMBEDDINGS_H

#include "serve/answer.h"

extern const struct lk_endpoint lk_embeddings_endpoint;

#endif
