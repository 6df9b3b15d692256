/* The state of the server as JSON: the model, and the sessions. */
#ifndef LK_SERVE_INFO_JSON_H
#define LK_SERVE_INFO_JSON_H

#include "serve/exchange.h"

/* The model object of OpenAI's API, with more facts under "meta"; a new reference. */
json_t *lk_model_json(const struct lk_server *server, const char *name);

/* All sessions with their levels and bytes, and the totals; a new reference. */
json_t *lk_slots_json(struct lk_server *server);

/* An element of "models" in the reply of /v1/models, in the form that Codex reads. */
json_t *lk_codex_model_json(const struct lk_server *server, const char *name);

#endif
