/* OpenAI's Responses API: POST /v1/responses. */
#ifndef LK_SERVE_OPENAI_RESPONSES_H
#define LK_SERVE_OPENAI_RESPONSES_H

#include "serve/answer.h"
#include "serve/api_error.h"

extern const struct lk_endpoint lk_openai_responses;

/* Convert a body to the form of /v1/chat/completions; a new reference. NULL: see `error`. */
json_t *lk_openai_responses_to_chat(const json_t *body, struct lk_api_error *error);

/* An error in OpenAI's form, with the words of this API. */
json_t *lk_openai_responses_error_json(const struct lk_api_error *error);

#endif
