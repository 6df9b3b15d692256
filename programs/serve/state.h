/* What the server tells of itself as JSON. */
#ifndef LK_SERVE_STATE_H
#define LK_SERVE_STATE_H

#include "serve/http.h"

/* The model in OpenAI's form, with facts of ours under "meta". */
json_t *lk_state_model(const struct lk_server *server);

/* Sessions with their levels and bytes, and what all of them hold. */
json_t *lk_state_slots(struct lk_server *server);

#endif
