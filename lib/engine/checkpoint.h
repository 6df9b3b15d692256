/* Checkpoints: earlier states of a session that lk_session_sync can go back to, for every recipe.
 *
 * Rows that were encoded or evicted cannot become exact again, so most caches can be cut back by a
 * few tokens only. A checkpoint is a copy of the cache at one position. It shares the blocks of the
 * session (cache.h), so it costs the blocks that the session has changed since, which are
 * those of the newest rows. At the end of a text it also has a row of logits.
 *
 * Checkpoints are taken at the end of each text, and within it at planned positions:
 *
 *     | system | user | assistant | user            <- the caller's marks: ends of messages
 *     |                     :           :     : :   <- the distance from the end doubles
 *
 * A prompt that passes the cache stops at each of them. An exact prefill (prefill.h) encodes for
 * each of them what the whole prompt's cache does not hold: its newest rows, and the states of
 * recurrent layers. */
#ifndef LK_ENGINE_CHECKPOINT_H
#define LK_ENGINE_CHECKPOINT_H

#include "base/err.h"
#include "base/ledger.h"
#include "cache/cache_save.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lk_session;

enum {
    LK_CHECKPOINT_GAP = 32,         /* minimum number of tokens between two checkpoints */
    LK_CHECKPOINT_MARK_GAP = 8,     /* the same, if one of them is at a mark */
    LK_CHECKPOINT_LAST = 4,         /* the same between the last mark of a text and its end */
    LK_CHECKPOINT_MIN = 8,          /* so many are kept, whatever they hold */
    LK_CHECKPOINT_BYTES = 64 << 20, /* what they may hold by default, at least */
};

struct lk_checkpoint {
    size_t n_tok; /* the session's first tokens, for which it stands */
    struct lk_cache *cache;
    float *logits; /* [n_vocab] of the last token; NULL within a text */
    void *states;  /* of recurrent layers, then of absorbed rows; NULL if there are none */
};

struct lk_checkpoints {
    struct lk_ledger ledger;        /* what the session's own ledger does not count */
    struct lk_ledger device_ledger; /* the same on the session's device */
    struct lk_checkpoint *at;       /* [n], room for cap, in the order of n_tok */
    int n, cap;
    uint64_t max_bytes; /* that they may hold if there are more than LK_CHECKPOINT_MIN */
    /* [n_planned], room for cap: checkpoints within the text that lk_session_sync evaluates, in the
     * order of n_tok. During an exact prefill the caches have only blocks of their own. */
    struct lk_checkpoint *planned;
    int n_planned;
};

/* Room for as many checkpoints as the options of the session, which has no tokens, allow.
 * LK_E_NOMEM. */
lk_status lk_checkpoints_init(struct lk_session *session, lk_err *err);
void lk_checkpoints_free(struct lk_session *session);

/* Remember the session as it is, with the logits of its last token if it is the end of a text. If
 * there are more than `cap` checkpoints, or they hold more than max_bytes, some are dropped, so
 * that they get sparser with the distance from the end. Ends a reservation of the session. Without
 * memory nothing is remembered. */
void lk_checkpoints_take(struct lk_session *session, bool is_end);

/* The longest checkpoint of at most n_common tokens from which a text of n_tok tokens can be
 * continued: without logits a token is missing. NULL if there is none. */
struct lk_checkpoint *lk_checkpoints_find(const struct lk_session *session, size_t n_common,
                                          size_t n_tok);

/* Can the session always be cut back to any length, so that it needs no checkpoints? */
bool lk_checkpoints_unneeded(const struct lk_session *session);

/* Plan checkpoints within a text of n_tok tokens, which is evaluated from token `from` on: at
 * mark[n_mark], the most important first, and at whole chunks from `from` on. None if the session
 * can always be cut back, or if the prefill is exact and a policy selects rows. */
void lk_checkpoints_plan(struct lk_session *session, const size_t *mark, size_t n_mark, size_t from,
                         size_t n_tok);

/* The planned checkpoints of an exact prefill: allocate empty caches and states before it, drop the
 * i-th one, keep all afterwards. Without memory they are left out. */
void lk_checkpoints_open_planned(struct lk_session *session);
void lk_checkpoints_drop_planned(struct lk_session *session, int i);
void lk_checkpoints_keep_planned(struct lk_session *session);

/* Make the session what it was at the checkpoint. It has room for a row of logits. LK_E_NOMEM: its
 * tokens have to be dropped. */
lk_status lk_checkpoints_restore(struct lk_session *session, const struct lk_checkpoint *from,
                                 lk_err *err);

/* Drop all checkpoints of more than n_tok tokens. */
void lk_checkpoints_drop(struct lk_session *session, size_t n_tok);

/* Copy the checkpoints of `from`, which has the same tokens. Those without memory are left out. */
void lk_checkpoints_copy(struct lk_session *session, const struct lk_session *from);

/* The one of at [n], in the order of n_tok, that is missed least by a session of n_tok tokens:
 * without it the gap between its neighbors is the smallest part of their distance from the end. The
 * newest one stays, if there are others. */
int lk_checkpoints_least_useful(const struct lk_checkpoint *at, int n, size_t n_tok);

/* For loading checkpoints: an empty cache, with room for states and, if asked
 * for, logits; false without memory. Free one. Drop the least useful ones while they hold too
 * much, in any process. */
bool lk_checkpoint_alloc(struct lk_session *session, size_t n_tok, bool logits,
                         struct lk_checkpoint *out);
void lk_checkpoint_free(struct lk_session *session, struct lk_checkpoint *at);
void lk_checkpoints_fit_bytes(struct lk_session *session);

/* Bytes that the checkpoints hold themselves, without the blocks that caches share. */
uint64_t lk_checkpoints_bytes(const struct lk_session *session);

/* The same with the shared blocks that the session itself does not hold. */
uint64_t lk_checkpoints_held_bytes(const struct lk_session *session);

/* ---- checkpoints in a saved session ----
 *
 * The newest first:
 *
 *   | struct lk_saved_checkpoint | logits | states | counts | rows |
 *
 *   logits  f32 [n_vocab], or nothing
 *   states  of recurrent layers, then of absorbed rows, as in the session's own section
 *   counts  see cache/cache_save.h
 *   rows    a part (cache/cache_save.h) of the next newer checkpoint, or of the session's cache:
 *           blocks that both hold are in the file once */

struct lk_session;

struct lk_saved_checkpoint {
    uint64_t n_tok;
    uint64_t logits, states, counts, rows; /* bytes */
};

/* Write all checkpoints of a session. All processes call this. Returns saving->ok. */
bool lk_checkpoints_write(const struct lk_session *session, struct lk_saving *saving);

/* Check the checkpoints of a session of n_tok tokens in data [size]. counts: of the session's
 * cache, which have passed lk_cache_check. LK_E_FORMAT; the message starts after a colon.
 * LK_E_NOMEM. */
lk_status lk_checkpoints_check(const struct lk_session *session, const void *data, uint64_t size,
                               const void *counts, size_t n_tok, lk_err *err);

/* Load checked checkpoints in a session that has the file's tokens and cache, and no checkpoints.
 * If it may keep fewer, the least useful ones are left out, and so are those without memory on a
 * process. All processes call this. from: lk_restoring_start of the section. */
void lk_checkpoints_load(struct lk_session *session, struct lk_restoring *from);

#endif
