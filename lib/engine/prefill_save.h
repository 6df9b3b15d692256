/* A prefill that was cut short (prefill_state.h), in a saved session. The session's other sections
 * have its tokens, the rows of the layers that are done, and the states of recurrent layers; layers
 * that are not done have no rows. Its own section:
 *
 *   | struct lk_saved_prefill | x | exact K, exact V | scores | planned checkpoints |
 *
 *   x        f32 [n_tok + n_replay][n_embd]
 *   exact    of each kind of layers, room for lk_prefill_rows as in struct lk_exact_rows; nothing
 *            before the first chunk of a layer, unless later layers attend to them
 *   scores   f32 [n_tok][n_head_kv] of the layer that is not done, if its policy needs them
 *   planned  | struct lk_saved_plan | states of recurrent layers | blocks that it holds itself |
 *
 * Only sessions in one process with rows in RAM have such a section. */
#ifndef LK_ENGINE_PREFILL_SAVE_H
#define LK_ENGINE_PREFILL_SAVE_H

#include "engine/session_state.h"

struct lk_saved_prefill {
    uint64_t n_tok, at;
    uint64_t n_done; /* lk_prefill_done */
    int32_t layer, is_prepared, n_planned, n_replay;
};

struct lk_saved_plan {
    uint64_t n_tok, blocks; /* tokens; bytes of the blocks */
};

/* Can the session be saved? LK_E_UNSUPPORTED for a suspended prefill in several processes, or with
 * rows on a device. */
lk_status lk_prefill_check_save(const struct lk_session *session, lk_err *err);

/* The session's cache as it is saved: `view` and kv [n_layer] share everything with it, but layers
 * that are not done are empty. */
void lk_prefill_view(const struct lk_session *session, struct lk_cache *view,
                     struct lk_kv (*kv)[2]);

/* Does the session hold a suspended prefill that has computed its logits? */
bool lk_prefill_has_logits(const struct lk_session *session);

/* Write the section of a suspended prefill. False if the writer fails. */
bool lk_prefill_write(const struct lk_session *session, const struct lk_writer *writer);

/* Check the section data [size] for an empty session of n_tok tokens. *n_layer: layers of the cache
 * that the other sections have rows of. has_logits: of the file. LK_E_FORMAT; the message starts
 * after a colon. LK_E_UNSUPPORTED as above. */
lk_status lk_prefill_check(const struct lk_session *session, const uint8_t *data, uint64_t size,
                           uint64_t n_tok, bool has_logits, int *n_layer, lk_err *err);

/* Load a checked section in a session that has the file's other sections, and no tokens yet but
 * session->tok. Planned checkpoints without memory, or that the session may not keep, are left out.
 * LK_E_NOMEM: the session's tokens have to be dropped. */
lk_status lk_prefill_load(struct lk_session *session, const uint8_t *data, lk_err *err);

/* n_done of a section data [size], 0 if it is too short. */
uint64_t lk_prefill_saved_done(const uint8_t *data, uint64_t size);

#endif
