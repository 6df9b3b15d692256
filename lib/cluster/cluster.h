/* A cluster: the peers that compute together, around the engine.
 *
 *     peer 0        lk_session_eval -> lk_op_run -> send the message --.
 *     other peers                       lk_cluster_follow <------------' -> lk_session_eval
 *
 * Every public function that changes a model or a session is an operation (engine/operation.h).
 * On peer 0 it sends a message (messages.c). The other peers receive it and call the same function
 * with the same arguments. Operations within an operation send nothing, because all peers come to
 * them by themselves. A new operation needs a kind, and its row in the table of messages.c.
 *
 * Rows are divided into shares, which are stripes of positions (cache/held.h). Counts of levels are
 * the same on all peers, so each knows what the others hold. A node of the graph gathers the
 * partial softmaxes of all shares (peer_exchange.h), and combining treats shares as it treats
 * ranges. Layers are divided into stages (stages.h), which compute one after the other.
 *
 * Peers may fail, by lack of memory, where others do not. So they agree on the result of every step
 * that can fail, before the next exchange (lk_agree). Whatever else decides what an operation does
 * is the same on all peers: arguments, and counts of tokens and rows.
 *
 * Progress callbacks are an exception: peer 0 may lead operations on other sessions in one, and
 * other threads of peer 0 may do so meanwhile. The peers that follow repeat them until LK_OP_GO_ON
 * says how the callback has ended. */
#ifndef LK_CLUSTER_CLUSTER_H
#define LK_CLUSTER_CLUSTER_H

#include "base/err.h"
#include "base/ledger.h"
#include "cluster/stages.h"
#include "engine/operation.h"
#include "lowkey_cluster.h"
#include "lowkey_serve.h"

#include <pthread.h>

enum { LK_MAX_PEERS = 1024, LK_OP_MAGIC = 0x706f6b6c };

/* Exchanges of lk_session_eval besides those of layers: the message, and agreeing. */
enum { LK_EVAL_EXCHANGES = 3 };

enum { LK_MAX_SUMS = 8 }; /* numbers of one operation that are summed up */

enum { LK_MESSAGE_INLINE = 192 }; /* bytes of a payload that fit into the message */

/* A message. A longer payload follows it. */
struct lk_message {
    uint32_t magic, kind;
    int32_t model, session, other; /* numbers (struct lk_handles) */
    uint32_t flag;
    uint64_t n, n_payload;
    char payload[LK_MESSAGE_INLINE];
};

/* Models or sessions by number. A new one gets the lowest number that is free, which is the same on
 * all peers. */
struct lk_handles {
    void **at; /* [n] NULL: free */
    int32_t n;
};

struct lk_cluster {
    struct lk_peers peers; /* first: what the engine sees */
    struct lk_save_link link;
    struct lk_ledger ledger;
    lk_transport transport;
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
    struct lk_batch *batch; /* of a peer that follows: for all batches of a model */
    lk_status (*extra)(struct lk_op *, lk_err *); /* LK_OP_EXTRA on a peer that follows, or NULL */
};

/* What the peers have of a model: one allocation, with the arrays after the struct. */
struct lk_parts {
    struct lk_stages stages;
    lk_peer_weights *weights; /* [n_peer] */
    int32_t *holder;          /* [n_layer] the first peer of each layer's stage */
    int32_t *cached;          /* [n_cached] the same of layers with K and V of their own */
};

static inline int lk_cluster_n_stage(const struct lk_model *model) {
    return model->parts ? model->parts->stages.n : 1;
}

/* The cluster of a model's peers; NULL for NULL. */
static inline struct lk_cluster *lk_cluster_of(struct lk_peers *peers) {
    return (struct lk_cluster *)peers;
}

/* Exchanges. False if a peer is lost. */
bool lk_cluster_gather(struct lk_cluster *c, const void *own, size_t n, void *all);
bool lk_cluster_broadcast(struct lk_cluster *c, void *data, size_t n); /* from peer 0 */
bool lk_cluster_broadcast_from(struct lk_cluster *c, int from, void *data, size_t n);

/* Count an exchange that started at `start`, in which this peer sent and received so many bytes.
 * Returns ok; if it is false, a peer is lost. */
bool lk_cluster_count(struct lk_cluster *c, double start, size_t sent, size_t received, bool ok);

/* lk_agree for the engine (engine/operation.h). */
lk_status lk_cluster_agree(struct lk_peers *peers, lk_status status, lk_err *err);

/* Is it true on all peers? */
bool lk_cluster_all(struct lk_cluster *c, bool ok);

/* End all peers: this one cannot go on, and the others wait for it. */
void lk_cluster_abort(struct lk_cluster *c, const char *why);

/* The peers of a model with several stages:
 *
 *     peer  | 0 ... S - 1 | S ... 2 S - 1 | ...       S = peers / stages
 *     stage        0              1
 *
 * The peers of a stage divide the rows of its layers. */
static inline int lk_cluster_shares(const struct lk_cluster *c, int n_stage) {
    return c->transport.n_peer / n_stage;
}

/* A number for a handle; -1 without memory. lk_handles_get: NULL if there is none. */
int32_t lk_handles_add(struct lk_cluster *c, struct lk_handles *handles, void *handle);
void lk_handles_remove(struct lk_handles *handles, const void *handle);
void *lk_handles_get(const struct lk_handles *handles, int32_t number);

#endif
