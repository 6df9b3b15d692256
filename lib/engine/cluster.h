/* A cluster: the ranks that compute together, and the operations that rank 0 leads.
 *
 * Every function of the interface that changes a model or a session is an operation. On rank 0 it
 * starts with lk_cluster_lead, which sends a message; the other ranks receive it (follow.c) and
 * call the same function with the same arguments. Operations within an operation send nothing,
 * because all ranks come to them by themselves.
 *
 *     rank 0        lk_session_eval -> lk_cluster_lead --.
 *     other ranks                  lk_cluster_follow <---' -> lk_session_eval
 *
 * Ranks may fail, by lack of memory, where others do not. So they agree on the result of every step
 * that can fail, before the next exchange (lk_cluster_agree, lk_cluster_all). Whatever else decides
 * what an operation does is the same on all ranks: arguments, and counts of tokens and rows.
 *
 * Progress callbacks are an exception: rank 0 may lead operations on other sessions in one, and
 * other threads of rank 0 may do so meanwhile. The ranks that follow repeat them until LK_OP_GO_ON
 * says how the callback has ended (lk_cluster_report).
 *
 * Without a cluster, which is NULL then, all functions do nothing and succeed. */
#ifndef LK_ENGINE_CLUSTER_H
#define LK_ENGINE_CLUSTER_H

#include "base/err.h"
#include "base/ledger.h"
#include "lowkey_cluster.h"

#include <pthread.h>

enum lk_op_kind {
    LK_OP_END,
    LK_OP_MODEL_OPEN,  /* payload: struct lk_op_model, then three strings */
    LK_OP_MODEL_FREE,  /* of `model` */
    LK_OP_SESSION_NEW, /* of `model`; payload: struct lk_op_session, then the recipe */
    LK_OP_SESSION_FREE,
    LK_OP_SYNC,     /* payload: n tokens, then marks as u64 */
    LK_OP_EVAL,     /* payload: n tokens; flag: all logits */
    LK_OP_TRUNCATE, /* to n tokens */
    LK_OP_CLEAR,
    LK_OP_RESERVE, /* n tokens */
    LK_OP_COPY,    /* from session `other` */
    LK_OP_SAVE,
    LK_OP_LOAD,
    LK_OP_STATS,
    LK_OP_LEVEL,      /* stats of level n */
    LK_OP_PREFILL,    /* payload: n tokens, then sessions as i32 */
    LK_OP_BATCH_EVAL, /* n items; payload: struct lk_op_item of each, then their tokens */
    LK_OP_REPEAT,     /* n tokens of session `other` */
    LK_OP_GO_ON,      /* after a progress callback; flag: what it has returned */
    LK_N_OP
};

enum { LK_MAX_RANKS = 1024, LK_OP_MAGIC = 0x706f6b6c };

/* Exchanges of lk_session_eval besides those of layers: the message, and agreeing. */
enum { LK_EVAL_EXCHANGES = 3 };

enum { LK_OP_INLINE = 192 }; /* bytes of a payload that fit into the message */

/* A message. A longer payload follows it. */
struct lk_op {
    uint32_t magic, kind;
    int32_t model, session, other; /* numbers (struct lk_handles) */
    uint32_t flag;
    uint64_t n, n_payload;
    char payload[LK_OP_INLINE];
};

struct lk_op_model {
    int32_t n_threads, weights, n_ctx;
    int32_t n_stage;
    uint8_t no_mmap, no_repack;
};

struct lk_op_session {
    int32_t n_ctx, n_checkpoint;
    uint64_t max_bytes, checkpoint_bytes;
    uint8_t chunked_prefill, whole, reports; /* reports: it has a progress callback */
};

struct lk_op_item {
    int32_t session;
    uint32_t n_tok, all;
};

/* Models or sessions by number. A new one gets the lowest number that is free, which is the same on
 * all ranks. */
struct lk_handles {
    void **at; /* [n] NULL: free */
    int32_t n;
};

struct lk_cluster {
    struct lk_ledger ledger;
    lk_ranks ranks;
    bool lost; /* a rank is lost: no exchange is possible any more */
    /* One thread at a time is in an operation. Threads take turns in the order in which they come,
     * so that a thread with many short operations does not keep another one waiting. */
    pthread_mutex_t lock; /* of the members down to `depth` */
    pthread_cond_t changed;
    uint64_t n_come, n_left; /* threads that have come for a turn, and that have ended one */
    pthread_t thread;        /* in an operation, if depth > 0 */
    int depth;               /* operations within each other */
    lk_cluster_stats stats;
    int32_t n_stage; /* of the models that are opened from now on; 0: one */
    struct lk_handles models, sessions;
    struct lk_batch *batch; /* of a rank that follows: for all batches of a model */
};

/* A part of a payload. */
struct lk_op_part {
    const void *data;
    size_t n;
};

/* Start an operation. op.magic and op.n_payload are set here; the payload is the concatenation of
 * the parts. LK_E_IO if a rank is lost, LK_E_NOMEM: the operation must not start, and
 * lk_cluster_done must not be called. */
lk_status lk_cluster_lead(struct lk_cluster *c, struct lk_op op, const struct lk_op_part *part,
                          int n_part, lk_err *err);
void lk_cluster_done(struct lk_cluster *c);

/* The functions that exchange bytes, or NULL without a cluster. */
const lk_ranks *lk_cluster_ranks(const struct lk_cluster *c);

/* Call the progress callback of an operation; NULL: there is none on any rank. Returns what it has
 * returned on rank 0, on all ranks, or false if a rank is lost. On other ranks the callback is that
 * of follow.c. */
bool lk_cluster_report(struct lk_cluster *c, lk_progress progress, void *user, uint64_t done,
                       uint64_t total);

/* Is this thread in an operation? */
bool lk_cluster_is_busy(struct lk_cluster *c);

/* LK_E_ARG on rank 0 outside of an operation: other ranks would not come along. */
lk_status lk_cluster_check_led(struct lk_cluster *c, lk_err *err);

/* The result of a step on all ranks: that of the first rank that failed, with its message, or
 * LK_OK. err: of this rank's `status`. */
lk_status lk_cluster_agree(struct lk_cluster *c, lk_status status, lk_err *err);

/* Is it true on all ranks? */
bool lk_cluster_all(struct lk_cluster *c, bool ok);

/* Exchanges. False if a rank is lost. */
bool lk_cluster_gather(struct lk_cluster *c, const void *own, size_t n, void *all);
bool lk_cluster_broadcast(struct lk_cluster *c, void *data, size_t n); /* from rank 0 */
bool lk_cluster_send(struct lk_cluster *c, int to, const void *data, size_t n);
bool lk_cluster_receive(struct lk_cluster *c, int from, void *data, size_t n);
lk_status lk_cluster_fail_lost(lk_err *err);

/* The ranks of a model with several stages (model/stages.h):
 *
 *     rank  | 0 ... S - 1 | S ... 2 S - 1 | ...       S = ranks / stages
 *     stage        0              1
 *
 * The ranks of a stage divide the rows of its layers (cache/shard.h). */
static inline int lk_cluster_shards(const struct lk_cluster *c, int n_stage) {
    return c->ranks.n_rank / n_stage;
}

/* lk_cluster_gather among the ranks of this rank's stage. */
bool lk_cluster_gather_stage(struct lk_cluster *c, int n_stage, const void *own, size_t n,
                             void *all);

/* x goes from the ranks of one stage to those of the next one: each sends to the rank that owns the
 * same rows. Only the ranks of these two stages call them. */
bool lk_cluster_send_next(struct lk_cluster *c, int n_stage, const float *x, size_t n);
bool lk_cluster_receive_previous(struct lk_cluster *c, int n_stage, float *x, size_t n);

/* Called by all ranks: the last stage's n logits go to rank 0. from: on the last stage; to: on rank
 * 0. */
bool lk_cluster_send_logits(struct lk_cluster *c, int n_stage, const float *from, float *to,
                            size_t n);

/* End all ranks: this one cannot go on, and the others wait for it. */
void lk_cluster_abort(struct lk_cluster *c, const char *why);

/* A number for a handle; -1 without memory. lk_handles_get: NULL if there is none. */
int32_t lk_handles_add(struct lk_cluster *c, struct lk_handles *handles, void *handle);
void lk_handles_remove(struct lk_handles *handles, const void *handle);
void *lk_handles_get(const struct lk_handles *handles, int32_t number);

#endif
