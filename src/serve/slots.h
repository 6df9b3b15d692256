/* The sessions a server keeps: those at work, and idle ones whose caches may serve another request that
 * begins with the same tokens. Belongs to the scheduler's thread. */
#ifndef LK_SERVE_SLOTS_H
#define LK_SERVE_SLOTS_H

#include "serve/call.h"

enum { LK_SLOT_MOST = 512, LK_VIEW_LEVELS = 12 };

struct lk_serve_slot {
    int         id;
    size_t      recipe; /* of the server's */
    lk_session *session;
    struct lk_job *job; /* NULL: idle */
    int32_t    *tok;    /* [n_tok] what the session stands after; room for the context */
    size_t      n_tok;
    struct lk_buf text; /* of a chat: the text those tokens stand for; empty: not known */
    uint64_t    need;   /* bytes set aside while at work */
    double      used;   /* moment of the last use */
    uint64_t    lent;   /* of its session's shared bytes those that it will share for good */
    bool        prefix; /* kept for others to begin with a copy of it (serve/prefix.h) */
    bool        pinned; /* not to be freed now */
    lk_progress progress; /* of reading prompts; NULL: nobody asks */
    void       *user;
};

struct lk_serve_slots {
    const struct lk_serve_opts *opts;
    struct lk_serve_slot *slot[LK_SLOT_MOST];
    size_t          n;
    int             last_id;
};

/* What others may know of a slot, copied for them. */
struct lk_slot_view {
    int              id;
    bool             busy, reading, prefix;
    size_t           recipe, n_prompt, n_reused, n_made;
    double           tokens_per_second, idle_s;
    lk_session_stats stats;
    size_t           n_level;
    lk_level_stats   level[LK_VIEW_LEVELS];
};

/* Bytes that all slots but `other` hold (idle) or may come to hold (at work), what several hold counted once. What
 * `other` shares for good is not counted. */
uint64_t lk_serve_slots_bytes(const struct lk_serve_slots *slots, const struct lk_serve_slot *other);
uint64_t lk_serve_slots_idle_bytes(const struct lk_serve_slots *slots, const struct lk_serve_slot *other);

/* The idle slot with most of the job's prompt in its cache; NULL where none has a worthwhile part. The
 * job's tokens are then chosen with it. */
struct lk_serve_slot *lk_serve_slots_match(struct lk_serve_slots *slots, struct lk_job *job);

/* Free idle slots but `keep`, those longest unused first, until `need` more bytes and another slot fit.
 * False where they do not; then nothing was freed. */
bool lk_serve_slots_make_room(struct lk_serve_slots *slots, const struct lk_serve_slot *keep, uint64_t need);

/* A new slot with an empty session. LK_E_NOMEM. */
lk_status lk_serve_slots_add(struct lk_serve_slots *slots, size_t recipe, struct lk_serve_slot **out, lk_err *err);

/* Free an idle slot. */
void lk_serve_slots_drop(struct lk_serve_slots *slots, struct lk_serve_slot *slot);

/* Make the slot's session, a new one, a copy of another's; whole: it will not be cut back. LK_E_NOMEM: it is empty. */
lk_status lk_slot_copy(struct lk_serve_slot *slot, struct lk_serve_slot *from, bool whole, lk_err *err);

/* A slot's session was made to stand after the job's tokens; or it stands nowhere (job NULL). */
void lk_slot_set(struct lk_serve_slot *slot, const struct lk_job *job);

/* One more token was evaluated. */
void lk_slot_extend(struct lk_serve_slot *slot, int32_t tok, const char *piece, size_t len);

struct lk_slot_view lk_slot_look(const struct lk_serve_slot *slot, double now);

void lk_serve_slots_free(struct lk_serve_slots *slots);

#endif
