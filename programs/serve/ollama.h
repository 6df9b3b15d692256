/* ollama's API. Bodies become OpenAI's chat or completion form, streams are lines of JSON. */
#ifndef LK_SERVE_OLLAMA_H
#define LK_SERVE_OLLAMA_H

#include "serve/answer.h"

/* /api/chat and /api/generate. */
extern const struct lk_endpoint lk_ollama_chat, lk_ollama_generate;

/* The body of a reply with an error; a new reference. */
json_t *lk_ollama_error_json(const struct lk_api_error *error);

/* A time in ollama's form, e.g. "2025-01-31T12:00:00Z"; a new reference. */
json_t *lk_ollama_time(int64_t seconds);

#endif
