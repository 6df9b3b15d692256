/* The request body of /v1/chat/completions. */
#ifndef LK_SERVE_OPENAI_CHAT_H
#define LK_SERVE_OPENAI_CHAT_H

#include "serve/request.h"

/* Parse the body. *request must be freed with lk_request_free in any case. False: see `error`. */
bool lk_openai_chat_parse(struct lk_request *request, const struct lk_server_opts *opts,
                          const char *body, size_t len, struct lk_api_error *error);

/* The same for a body that is parsed already. It is taken over; NULL: parsing it failed, and
 * `error` is set. */
bool lk_openai_chat_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                               json_t *body, struct lk_api_error *error);

#endif
