/* The sessions a server keeps: those at work, and idle ones whose caches may serve another request that
 * begins with the same tokens. Belongs to the scheduler's thread. */
#ifndef LK_SERVE_SLOTS_H
#define LK_SERVE_SLOTS_H

#include "serve/call.h"

enum { LK_MAX_SLOT = 512, LK_VIEW_LEVELS = 12 };

/* What the disk's thread does with a slot's session (serve/disk.h). Until it has, nobody else touches the
 * session; while it is only written to disk, others may read it. */
enum lk_order_kind {
    LK_ORDER_NONE,
    LK_ORDER_STORE,
    LK_ORDER_FETCH,
    LK_ORDER_SAVE,
    LK_ORDER_RESTORE
};

struct lk_order {
    enum lk_order_kind kind;
    struct lk_serve_slot *next; /* in the disk's queues */
    struct lk_errand *errand;   /* of a client that waits for it; or NULL */
    lk_err err;                 /* what came of it */
    uint64_t bytes;             /* of the file */
    double seconds;
};

struct lk_serve_slot {
    int id;
    size_t recipe; /* of the server's */
    lk_session *session;
    struct lk_job *job; /* NULL: idle */
    int32_t *tok;       /* [n_tok] what the session stands after; room for the context */
    size_t n_tok;
    struct lk_buf text; /* of a chat: the text those tokens stand for; empty: not known */
    uint64_t need;      /* bytes set aside while at work */
    double used;        /* moment of the last use */
    uint64_t lent;      /* of its session's shared bytes those that it will share for good */
    bool prefix;        /* kept for others to begin with a copy of it (serve/prefix.h) */
    bool pinned;        /* not to be freed now */
    struct lk_order order;
    char origin[LK_STORED_NAME]; /* the stored session it was loaded from; empty: none */
    bool leaving;                /* it is freed when it has been written to disk */
    bool hidden;                 /* of a request that wants neither reuse nor files */
    lk_progress progress;        /* of reading prompts; NULL: nobody asks */
    void *user;
};

struct lk_serve_slots {
    const struct lk_serve_opts *opts;
    struct lk_serve_slot *slot[LK_MAX_SLOT];
    size_t n;
    int last_id;
    struct lk_disk *disk; /* where idle sessions go that have to leave; NULL: nowhere */
};

/* What others may know of a slot, copied for them. */
struct lk_slot_view {
    int id;
    bool busy, reading, loading, saving, prefix;
    size_t recipe, n_prompt, n_reused, n_made;
    double tokens_per_second, idle_s;
    lk_session_stats stats;
    size_t n_level;
    lk_level_stats level[LK_VIEW_LEVELS];
};

/* Bytes that all slots but `other` hold (idle) or may come to hold (at work), what several hold counted once. What
 * `other` shares for good is not counted. */
uint64_t lk_serve_slots_bytes(const struct lk_serve_slots *slots,
                              const struct lk_serve_slot *other);
uint64_t lk_serve_slots_idle_bytes(const struct lk_serve_slots *slots,
                                   const struct lk_serve_slot *other);

/* The slot without work that has most of the job's prompt in its cache; NULL where none has a worthwhile part. The
 * job's tokens are then chosen with it where that is a chat that goes on. It may be at the disk. */
struct lk_serve_slot *lk_serve_slots_match(struct lk_serve_slots *slots, struct lk_job *job);

/* The slot's session was loaded from disk: note what it stands after, and choose the tokens of the job (may be
 * NULL) with it where the job's text goes on with that. */
void lk_serve_slots_loaded(struct lk_serve_slots *slots, struct lk_serve_slot *slot,
                           struct lk_job *job);

/* Free idle slots but `keep`, those longest unused first, until `need` more bytes and another slot fit. Where they
 * never will nothing is freed; soon: sessions are being written to disk first. */
enum lk_room { LK_ROOM_NOT, LK_ROOM_SOON, LK_ROOM_NOW };
enum lk_room lk_serve_slots_make_room(struct lk_serve_slots *slots,
                                      const struct lk_serve_slot *keep, uint64_t need);

/* A new slot with an empty session. LK_E_NOMEM. */
lk_status lk_serve_slots_add(struct lk_serve_slots *slots, size_t recipe,
                             struct lk_serve_slot **out, lk_err *err);

/* Free an idle slot. */
void lk_serve_slots_drop(struct lk_serve_slots *slots, struct lk_serve_slot *slot);

/* Make the slot's session, a new one, a copy of another's; whole: it will not be cut back. LK_E_NOMEM: it is empty. */
lk_status lk_slot_copy(struct lk_serve_slot *slot, struct lk_serve_slot *from, bool whole,
                       lk_err *err);

/* A slot's session was made to stand after the job's tokens. */
void lk_slot_set(struct lk_serve_slot *slot, const struct lk_job *job);

/* One more token was evaluated. */
void lk_slot_extend(struct lk_serve_slot *slot, int32_t tok, const char *piece, size_t len);

struct lk_slot_view lk_slot_look(const struct lk_serve_slot *slot, double now);

void lk_serve_slots_free(struct lk_serve_slots *slots);

#endif
