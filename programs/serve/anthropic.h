/* Anthropic's messages API: /v1/messages and /v1/messages/count_tokens. */
#ifndef LK_SERVE_ANTHROPIC_H
#define LK_SERVE_ANTHROPIC_H

#include "serve/answer.h"
#include "serve/api_error.h"

extern const struct lk_endpoint lk_anthropic;

/* The same form, for a request whose tokens are only counted. */
extern const struct lk_endpoint lk_anthropic_count;

/* The body of a reply with an error; a new reference. */
json_t *lk_anthropic_error_json(const struct lk_api_error *error);

/* Convert a body to OpenAI's chat form; a new reference. NULL: see `error`. `count_only`: its
 * tokens are only counted, so it needs no limit. */
json_t *lk_anthropic_to_chat(const json_t *body, bool count_only, struct lk_api_error *error);

#endif
