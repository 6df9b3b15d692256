/* ollama's /api/embed, and the older /api/embeddings with one text. */
#ifndef LK_SERVE_OLLAMA_EMBED_H
#define LK_SERVE_OLLAMA_EMBED_H

#include "serve/answer.h"

extern const struct lk_endpoint lk_ollama_embed, lk_ollama_embeddings;

#endif
