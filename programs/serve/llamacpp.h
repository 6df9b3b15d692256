/* Endpoints of llama.cpp's server that OpenAI's API does not have: /completion and /infill. */
#ifndef LK_SERVE_LLAMACPP_H
#define LK_SERVE_LLAMACPP_H

#include "serve/answer.h"

extern const struct lk_endpoint lk_llamacpp_completion, lk_llamacpp_infill;

/* The sampling parameters of a request as llama.cpp's server reports them; a new reference. */
json_t *lk_llamacpp_settings(const struct lk_server_opts *opts, const lk_sampler_opts *sampling);

/* The reply of /props; a new reference. */
json_t *lk_llamacpp_props(const struct lk_server_opts *opts);

/* An error in OpenAI's form; a prompt that is too long has llama-server's type and words. */
json_t *lk_llamacpp_error_json(const struct lk_api_error *error);

#endif
