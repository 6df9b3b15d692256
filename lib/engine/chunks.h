/* A text in chunks through several stages, which compute different chunks at the same time
 * (pipeline.h). Before each tick all ranks agree that they can go on. */
#ifndef LK_ENGINE_CHUNKS_H
#define LK_ENGINE_CHUNKS_H

#include "engine/session_state.h"

/* Let the session, whose tokens are the first ones of tok, hold all of tok [n_tok], with the logits
 * of the last token. Called by all ranks of a model with several stages.
 *
 * LK_E_CANCELLED: the session holds a prefix of tok. After other failures, LK_E_NOMEM or LK_E_IO,
 * it is empty, because its stages stand at different tokens. */
lk_status lk_chunks_extend(struct lk_session *session, const int32_t *tok, size_t n_tok,
                           lk_err *err);

#endif
