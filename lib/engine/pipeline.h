/* A text in chunks through several stages (model/stages.h), which compute at the same time:
 *
 *     tick      0         1         2         3
 *     stage 0   chunk 0   chunk 1   chunk 2
 *     stage 1             chunk 0   chunk 1   chunk 2
 *
 * Before each tick all ranks agree that they can go on. After it, hidden states go to the next
 * stages. */
#ifndef LK_ENGINE_PIPELINE_H
#define LK_ENGINE_PIPELINE_H

#include "engine/session_state.h"

/* Let the session, whose tokens are the first ones of tok, hold all of tok [n_tok], with the logits
 * of the last token. Called by all ranks of a model with several stages.
 *
 * LK_E_CANCELLED: the session holds a prefix of tok. After other failures, LK_E_NOMEM or LK_E_IO,
 * it is empty, because its stages stand at different tokens. */
lk_status lk_pipeline_extend(struct lk_session *session, const int32_t *tok, size_t n_tok,
                             lk_err *err);

#endif
