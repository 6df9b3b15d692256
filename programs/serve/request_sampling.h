/* The sampling parameters of a request. */
#ifndef LK_SERVE_REQUEST_SAMPLING_H
#define LK_SERVE_REQUEST_SAMPLING_H

#include "serve/request.h"

/* Parse temperature, penalties, seed, logit_bias and the like from request->body into
 * request->sampling. False: see `error`. */
bool lk_request_parse_sampling(struct lk_request *request, struct lk_api_error *error);

#endif
