/* The state of the server as JSON: the model, and the sessions. */
#ifndef LK_SERVE_INFO_JSON_H
#define LK_SERVE_INFO_JSON_H

#include "serve/exchange.h"

/* The model object of OpenAI's API, with more facts under "meta"; a new reference. */
json_t *lk_model_json(const struct lk_server *server, struct lk_served *served, const char *name);

/* "loaded", "loading" or "not-loaded": LM Studio's words. */
const char *lk_served_state_name(const struct lk_server *server, struct lk_served *served);

/* All sessions of a model with their levels and bytes, and the totals, which must be in use. NULL:
 * of all models that are loaded. A new reference. */
json_t *lk_slots_json(struct lk_server *server, struct lk_served *served);

/* An element of "models" in the reply of /v1/models, in the form that Codex reads. */
json_t *lk_codex_model_json(const struct lk_served *served, const char *name);

#endif
