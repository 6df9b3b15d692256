/* Checkpoints: earlier states of a session that lk_session_sync can go back to, for every recipe.
 *
 * Rows that were encoded or evicted cannot become exact again, so most caches can be cut back by a
 * few tokens only. A checkpoint is a copy of the cache at one position. It shares the blocks of the
 * session (cache_copy.h), so it costs the blocks that the session has changed since, which are
 * those of the newest rows, and one row of logits. */
#ifndef LK_ENGINE_CHECKPOINT_H
#define LK_ENGINE_CHECKPOINT_H

#include "base/err.h"
#include "base/ledger.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lk_session;

enum { LK_CHECKPOINT_GAP = 32 }; /* minimum number of tokens between two checkpoints */

struct lk_checkpoint {
    size_t n_tok; /* the session's first tokens, for which it stands */
    struct lk_cache *cache;
    float *logits; /* [n_vocab] of the last token */
    void *states;  /* of recurrent layers, then of absorbed rows; NULL if there are none */
};

struct lk_checkpoints {
    struct lk_ledger ledger;  /* what the session's own ledger does not count */
    struct lk_checkpoint *at; /* [n], room for cap, in the order of n_tok */
    int n, cap;
};

/* Room for `cap` checkpoints of a session without tokens. LK_E_NOMEM. */
lk_status lk_checkpoints_init(struct lk_session *session, int cap, lk_err *err);
void lk_checkpoints_free(struct lk_session *session);

/* Remember the session as it is, with the logits of its last token. If there are `cap` checkpoints,
 * one of them is dropped, so that they get sparser with the distance from the end. Ends a
 * reservation of the session. Without memory nothing is remembered. */
void lk_checkpoints_take(struct lk_session *session);

/* The longest checkpoint of at most n_tok tokens; NULL if there is none. */
struct lk_checkpoint *lk_checkpoints_find(const struct lk_session *session, size_t n_tok);

/* Make the session what it was at the checkpoint. It has room for a row of logits. LK_E_NOMEM: its
 * tokens have to be dropped. */
lk_status lk_checkpoints_restore(struct lk_session *session, const struct lk_checkpoint *from,
                                 lk_err *err);

/* Drop all checkpoints of more than n_tok tokens. */
void lk_checkpoints_drop(struct lk_session *session, size_t n_tok);

/* Copy the checkpoints of `from`, which has the same tokens. Those without memory are left out. */
void lk_checkpoints_copy(struct lk_session *session, const struct lk_session *from);

/* Bytes that the checkpoints hold themselves, without the blocks that caches share. */
uint64_t lk_checkpoints_bytes(const struct lk_session *session);

#endif
