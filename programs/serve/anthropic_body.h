/* The request body of Anthropic's messages API. */
#ifndef LK_SERVE_ANTHROPIC_BODY_H
#define LK_SERVE_ANTHROPIC_BODY_H

#include "serve/api_error.h"

/* Convert a body to OpenAI's chat form; a new reference. NULL: see `error`. `count_only`: its
 * tokens are only counted, so it needs no limit. */
json_t *lk_anthropic_to_chat(const json_t *body, bool count_only, struct lk_api_error *error);

#endif
