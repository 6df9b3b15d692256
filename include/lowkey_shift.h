/* lowkey_shift.h - context shift: texts that are longer than the context (docs/sessions.md).
 *
 * The rules of lowkey.h hold here too. */
#ifndef LOWKEY_SHIFT_H
#define LOWKEY_SHIFT_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Drop the oldest tokens after the first n_keep ones from a session, so that it has room for more:
 * n_drop tokens, or 0 for half of those after the first n_keep. Nothing is evaluated, and the last
 * logits stay. The tokens that remain keep what they have seen, and later ones attend to them at
 * distances that count the remaining tokens only. Memory of the dropped rows is freed, unless
 * copies or checkpoints share it.
 *
 * Whole blocks of rows are dropped: n_keep and n_drop are rounded up, usually to multiples of 32
 * after the sinks of the recipe. *n_kept and *n_dropped (may be NULL) receive what was done: the
 * session's tokens are then its first *n_kept ones and those after *n_kept + *n_dropped. Later
 * shifts keep what the first one kept. Layers with a sliding window keep their newest rows only.
 * States of recurrent layers keep what the dropped tokens left in them.
 *
 * LK_E_UNSUPPORTED as lk_session_shiftable, and if there is no whole block to drop. LK_E_FULL after
 * a million tokens: RoPE's angles are not exact enough beyond that. After an error the session is
 * unchanged. */
lk_status lk_session_shift(lk_session *session, size_t n_keep, size_t n_drop, size_t *n_kept,
                           size_t *n_dropped, lk_err *err);

/* Do recipe and model allow lk_session_shift? *why (may be NULL): why not, static. */
bool lk_session_shiftable(const lk_session *session, const char **why);

#ifdef __cplusplus
}
#endif
#endif
