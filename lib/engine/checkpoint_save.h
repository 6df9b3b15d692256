/* Checkpoints in a saved session, the newest first:
 *
 *   | struct lk_saved_checkpoint | logits | states | counts | rows |
 *
 *   logits  f32 [n_vocab], or nothing
 *   states  of recurrent layers, then of absorbed rows, as in the session's own section
 *   counts  see cache/cache_save.h
 *   rows    a part (cache/cache_save.h) of the next newer checkpoint, or of the session's cache:
 *           blocks that both hold are in the file once */
#ifndef LK_ENGINE_CHECKPOINT_SAVE_H
#define LK_ENGINE_CHECKPOINT_SAVE_H

#include "base/err.h"
#include "cache/cache_save.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lk_session;

struct lk_saved_checkpoint {
    uint64_t n_tok;
    uint64_t logits, states, counts, rows; /* bytes */
};

/* Write all checkpoints of a session. All ranks call this. Returns saving->ok. */
bool lk_checkpoints_write(const struct lk_session *session, struct lk_saving *saving);

/* Check the checkpoints of a session of n_tok tokens in data [size]. counts: of the session's
 * cache, which have passed lk_cache_check. LK_E_FORMAT; the message starts after a colon.
 * LK_E_NOMEM. */
lk_status lk_checkpoints_check(const struct lk_session *session, const void *data, uint64_t size,
                               const void *counts, size_t n_tok, lk_err *err);

/* Load checked checkpoints in a session that has the file's tokens and cache, and no checkpoints.
 * If it may keep fewer, the least useful ones are left out, and so are those without memory on a
 * rank. All ranks call this. from: lk_restoring_start of the section. */
void lk_checkpoints_load(struct lk_session *session, struct lk_restoring *from);

#endif
