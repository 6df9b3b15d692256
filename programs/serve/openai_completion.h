/* The request body of /v1/completions, and prompts to fill in the middle. */
#ifndef LK_SERVE_OPENAI_COMPLETION_H
#define LK_SERVE_OPENAI_COMPLETION_H

#include "lowkey.h"
#include "serve/api_error.h"
#include "serve/request.h"

/* Parse the body. *request must be freed with lk_request_free in any case. False: see `error`. */
bool lk_openai_completion_parse(struct lk_request *request, const struct lk_server_opts *opts,
                                const char *body, size_t len, struct lk_api_error *error);

/* The same for a body that is parsed already. It is taken over; NULL: parsing it failed, and
 * `error` is set. */
bool lk_openai_completion_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                                     json_t *body, struct lk_api_error *error);

/* Parse `field` of the body (a static name) as up to `max` prompts: a string, an array of token
 * ids, or an array of these. */
bool lk_openai_parse_prompts(struct lk_request *request, const char *field, size_t max,
                             struct lk_api_error *error);

/* Fill in the middle: a prompt made of the texts before and after the cursor, and control tokens
 * that the model was trained with. */

struct lk_infill {
    const char *prefix, *suffix; /* before and after the cursor; NULL: empty */
    const char *prompt;          /* the end of the prefix: the line of the cursor; or NULL */
    const json_t *extra;         /* other files: an array of {"filename", "text"}; or NULL */
};

/* Make the prompt as marked text (lk_chat_format) in *out, owned: free(). False: see `error`. 501:
 * the model has no such tokens. */
bool lk_infill_format(const struct lk_infill *infill, const lk_model *model, char **out,
                      struct lk_api_error *error);

#endif
