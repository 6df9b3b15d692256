/* OpenAI's Responses API: POST /v1/responses. */
#ifndef LK_SERVE_OPENAI_RESPONSES_H
#define LK_SERVE_OPENAI_RESPONSES_H

#include "serve/answer.h"

extern const struct lk_endpoint lk_openai_responses;

#endif
