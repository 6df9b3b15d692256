/* Slots: the sessions that the server keeps. Some are busy with a job. Idle ones keep their caches
 * for later requests that start with the same tokens. Used only by the scheduler's thread, except
 * as noted at lk_slot_command. */
#ifndef LK_SERVE_SLOTS_H
#define LK_SERVE_SLOTS_H

#include "serve/completion.h"

enum {
    LK_MAX_SLOT = 512,
    LK_MAX_SLOT_ID = 1000000, /* after it, numbers start again at 1 */
    LK_SNAPSHOT_LEVELS = 12
};

/* What the disk thread does with the session of a slot (serve/disk.h). Until it is done, no other
 * thread may use the session, except for reading it during STORE and SAVE. */
enum lk_slot_command_kind {
    LK_SLOT_CMD_NONE,
    LK_SLOT_CMD_STORE,  /* write the session to the store */
    LK_SLOT_CMD_FETCH,  /* load job->stored from the store */
    LK_SLOT_CMD_SAVE,   /* write a file that a client named */
    LK_SLOT_CMD_RESTORE /* load a file that a client named */
};

struct lk_slot_command {
    enum lk_slot_command_kind kind;
    struct lk_slot *next;         /* in the queues of the disk thread */
    struct lk_disk_job *disk_job; /* of the client that waits for it, or NULL */
    lk_err err;                   /* result */
    uint64_t bytes;               /* size of the file */
    double seconds;
};

/* State of a slot, copied for other threads. */
struct lk_slot_snapshot {
    int id;
    bool busy, prefill, loading, saving, is_prefix;
    size_t recipe, n_prompt, n_processed; /* of a busy one, or of a prefill that was cut short */
    size_t n_reused, n_decoded;           /* of a busy one */
    double tokens_per_second, idle_s;
    uint64_t rank_bytes;    /* held by this session alone, on this rank */
    lk_session_stats stats; /* of all ranks, like the levels */
    size_t n_level;
    lk_level_stats level[LK_SNAPSHOT_LEVELS];
};

struct lk_slot {
    int id;
    size_t recipe; /* index into lk_server_opts.recipe */
    lk_session *session;
    struct lk_job *job; /* NULL: idle */
    int32_t *tok;       /* [n_tok] tokens that the session holds; capacity n_ctx */
    size_t n_tok;
    struct lk_buf text; /* marked text of these tokens, for chats; empty: unknown */
    uint64_t reserved;  /* bytes that its job may need */
    double last_used;
    uint64_t immutable_bytes; /* part of its session's shared bytes that it will never copy */
    bool is_partial;          /* its session holds a prefill of these tokens that was cut short */
    bool is_prefix;           /* kept only to be copied by others (serve/slot_prefill.h) */
    bool pinned;              /* must not be evicted now */
    bool evicting;            /* will be freed when it has been written to disk */
    bool discard;             /* free it when its job has ended: scored or embedded */
    bool is_private; /* of a request with "cache_prompt": false: neither reused nor stored */
    struct lk_slot_command command;
    char stored[LK_STORE_NAME_LEN]; /* stored session that it was loaded from; empty: none */
    lk_progress progress;           /* called during prefill with `user`; may be NULL */
    void *user;
    struct lk_slot_snapshot last; /* the last one that was taken, at last_time */
    double last_time;             /* 0: never */
};

struct lk_slots {
    const struct lk_server_opts *opts;
    struct lk_slot *slot[LK_MAX_SLOT];
    size_t n;
    int last_id;
    /* Called before an idle slot is evicted. Returns true if it started to write the session to
     * disk; the slot is then freed later. NULL: evicted sessions are lost. */
    bool (*store_evicted)(void *user, struct lk_slot *slot);
    void *store_user;
};

/* Bytes that cannot be freed by evicting idle slots: what busy slots hold or have reserved. */
uint64_t lk_slots_busy_bytes(const struct lk_slots *slots);

/* Find the idle slot whose session holds the longest part of the job's prompt. If the prompt is a
 * chat that continues the slot's text, job->tok is set to the slot's tokens and those of the rest.
 * The slot may have a pending disk command. NULL: no slot holds enough of the prompt. */
struct lk_slot *lk_slots_match(struct lk_slots *slots, struct lk_job *job);

/* Update the slot after its session was loaded from disk, or its prefill was cut short. If the
 * prompt of `job` (may be NULL) continues the session's text, job->tok is set as by
 * lk_slots_match. */
void lk_slots_after_load(struct lk_slots *slots, struct lk_slot *slot, struct lk_job *job);

/* Make room for `need` more bytes and one more slot, or for `need` bytes in the slot `keep`, by
 * evicting idle slots other than `keep`: first prefills that were cut short, then the least
 * recently used. NEVER: it cannot fit while the busy slots stay; nothing was evicted. SOON: it will
 * fit when the disk thread is done. */
enum lk_room { LK_ROOM_NEVER, LK_ROOM_SOON, LK_ROOM_NOW };
enum lk_room lk_slots_make_room(struct lk_slots *slots, const struct lk_slot *keep, uint64_t need);

/* Add a slot with an empty session. LK_E_NOMEM. */
lk_status lk_slots_add(struct lk_slots *slots, size_t recipe, struct lk_slot **out, lk_err *err);

/* Free an idle slot. */
void lk_slots_remove(struct lk_slots *slots, struct lk_slot *slot);

/* Free the idle slots that are to be discarded. */
void lk_slots_remove_discarded(struct lk_slots *slots);

/* Make the empty session of `slot` a copy of another one. `whole`: the copy will not be truncated.
 * LK_E_NOMEM: it stays empty. */
lk_status lk_slot_copy(struct lk_slot *slot, struct lk_slot *from, bool whole, lk_err *err);

/* Update the slot after prefill: its session holds job->tok. */
void lk_slot_set_prompt(struct lk_slot *slot, const struct lk_job *job);

/* Update the slot after one more token was evaluated. */
void lk_slot_append(struct lk_slot *slot, const lk_model *model, int32_t tok);

/* max_age: bytes and levels of a busy session may be those of max_age seconds ago, and those of an
 * idle one are only counted again if it was used. 0: count always. Several ranks exchange them. */
struct lk_slot_snapshot lk_slot_take_snapshot(struct lk_slot *slot, double now, double max_age);

void lk_slots_free(struct lk_slots *slots);

#endif
