/* The request body of OpenAI's Responses API. */
#ifndef LK_SERVE_OPENAI_RESPONSES_BODY_H
#define LK_SERVE_OPENAI_RESPONSES_BODY_H

#include "serve/api_error.h"

/* Convert a body to the form of /v1/chat/completions; a new reference. NULL: see `error`. */
json_t *lk_openai_responses_to_chat(const json_t *body, struct lk_api_error *error);

#endif
