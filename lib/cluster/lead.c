/* Joining a cluster, taking turns, and running operations on all peers. */
#include "cluster/messages.h"
#include "cluster/peer_exchange.h"
#include "engine/session_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- for the engine ---- */

/* The sum of a number over all peers. */
static uint64_t sum(struct lk_peers *peers, uint64_t n, bool *ok) {
    struct lk_cluster *c = lk_cluster_of(peers);
    uint64_t all[LK_MAX_PEERS], total = 0;
    *ok = lk_cluster_gather(c, &n, sizeof n, all) && *ok;
    for (int i = 0; *ok && i < c->transport.n_peer; i++) total += all[i];
    return total;
}

static void abort_all(struct lk_peers *peers, const char *why) {
    lk_cluster_abort(lk_cluster_of(peers), why);
}

/* ---- operations ---- */

/* Wait until no other thread is in an operation, and start n operations within each other. */
static void begin_turn(struct lk_cluster *c, int n) {
    pthread_mutex_lock(&c->lock);
    if (c->depth == 0 || !pthread_equal(c->thread, pthread_self())) {
        uint64_t turn = c->n_come++;
        while (turn != c->n_left) pthread_cond_wait(&c->changed, &c->lock);
        c->thread = pthread_self();
    }
    c->depth += n;
    pthread_mutex_unlock(&c->lock);
}

/* End n operations within each other. */
static void end_turn(struct lk_cluster *c, int n) {
    pthread_mutex_lock(&c->lock);
    c->depth -= n;
    if (c->depth == 0) {
        c->n_left++;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}

static bool is_in_op(struct lk_peers *peers) {
    struct lk_cluster *c = lk_cluster_of(peers);
    pthread_mutex_lock(&c->lock);
    bool busy = c->depth > 0 && pthread_equal(c->thread, pthread_self());
    pthread_mutex_unlock(&c->lock);
    return busy;
}

/* Replace op->sum by the sums over all peers. */
static void sum_up(struct lk_cluster *c, struct lk_op *op) {
    uint64_t all[LK_MAX_PEERS][LK_MAX_SUMS];
    uint64_t own[LK_MAX_SUMS] = {0};
    memcpy(own, op->sum, op->n_sum * sizeof *own);
    if (!lk_cluster_gather(c, own, sizeof own, all)) return;
    op->part = 0;
    memset(op->sum, 0, op->n_sum * sizeof *op->sum);
    for (int peer = 0; peer < c->transport.n_peer; peer++) {
        for (size_t i = 0; i < op->n_sum; i++) op->sum[i] += all[peer][i];
        if (op->part_of == peer || (op->part_of < 0 && all[peer][0] > op->part))
            op->part = all[peer][0];
    }
}

/* The operation on this peer, with what all peers do after it. */
static lk_status run_here(struct lk_cluster *c, struct lk_op *op, lk_err *err) {
    struct lk_handles *handles = op->kind == LK_OP_MODEL_FREE     ? &c->models
                                 : op->kind == LK_OP_SESSION_FREE ? &c->sessions
                                                                  : NULL;
    if (handles) lk_handles_remove(handles, op->session ? (void *)op->session : (void *)op->model);
    lk_status status = op->run(op, err);
    if (op->kind == LK_OP_SESSION_NEW && !status) {
        lk_session *s = *op->created;
        s->number = lk_handles_add(c, &c->sessions, s);
        if (s->number < 0) status = lk_fail(err, LK_E_NOMEM, "out of memory for a session");
    }
    if (op->kind == LK_OP_SESSION_NEW || op->kind == LK_OP_RESERVE)
        status = lk_cluster_agree(&c->peers, status, err);
    if (op->n_sum > 0) sum_up(c, op);
    return status;
}

/* Do not sum up within another operation: every peer comes to the call by itself. After the loss of
 * a peer, what is freed or cleared here still is. */
static lk_status run_op(struct lk_peers *peers, struct lk_op *op, lk_err *err) {
    struct lk_cluster *c = lk_cluster_of(peers);
    lk_err why = {0};
    if (op->n_sum > 0 && is_in_op(peers)) return LK_OK;
    begin_turn(c, 1);
    lk_status status = c->peers.lost ? lk_fail_lost(&why) : LK_OK;
    if (!status && c->transport.own == 0 && c->depth == 1) status = lk_message_send(c, op, &why);
    bool frees =
        op->kind == LK_OP_SESSION_FREE || op->kind == LK_OP_MODEL_FREE || op->kind == LK_OP_CLEAR;
    if (!status || frees) status = run_here(c, op, &why);
    end_turn(c, 1);
    return status ? lk_fail(err, status, "%s", why.msg) : LK_OK;
}

static bool report(struct lk_peers *peers, lk_progress progress, void *user, uint64_t done,
                   uint64_t total) {
    struct lk_cluster *c = lk_cluster_of(peers);
    int depth = c->depth;
    end_turn(c, depth);
    bool go_on = progress(user, done, total);
    begin_turn(c, depth);
    if (c->transport.own > 0) return go_on;
    struct lk_op op = {.kind = LK_OP_GO_ON, .flag = go_on};
    return !lk_message_send(c, &op, NULL) && go_on;
}

/* ---- joining ---- */

/* All peers must be of one version: they send each other structs. */
static lk_status check_version(struct lk_cluster *c, lk_err *err) {
    char first[32] = {0};
    lk_err why = {0};
    strncpy(first, LOWKEY_VERSION, sizeof first - 1);
    if (!lk_cluster_broadcast(c, first, sizeof first)) return lk_fail_lost(err);
    first[sizeof first - 1] = 0;
    lk_status status = strcmp(first, LOWKEY_VERSION) == 0
                           ? LK_OK
                           : lk_fail(&why, LK_E_UNSUPPORTED,
                                     "this is lowkey %s, but rank 0 is %s; install the "
                                     "same version on all machines",
                                     LOWKEY_VERSION, first);
    status = lk_cluster_agree(&c->peers, status, &why);
    return status ? lk_fail(err, status, "%s", why.msg) : LK_OK;
}

lk_status lk_cluster_new(lk_cluster **out, const lk_transport *transport, lk_err *err) {
    struct lk_ledger ledger = {0}; /* the cluster's own ledger does not exist yet */
    if (transport->n_peer < 1 || transport->n_peer > LK_MAX_PEERS || transport->own < 0 ||
        transport->own >= transport->n_peer)
        return lk_fail(err, LK_E_ARG, "rank %d of %d is not possible; there may be 1 to %d ranks",
                       transport->own, transport->n_peer, LK_MAX_PEERS);
    struct lk_cluster *c = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "out of memory for a cluster");
    c->transport = *transport;
    c->peers = (struct lk_peers){.run = run_op,
                                 .is_in_op = is_in_op,
                                 .agree = lk_cluster_agree,
                                 .report = report,
                                 .sum = sum,
                                 .abort = abort_all};
    lk_cluster_set_exchanges(c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    lk_status status = check_version(c, err);
    if (!status) {
        *out = c;
        return LK_OK;
    }
    c->peers.lost = true; /* the others are not following yet */
    lk_cluster_free(c);
    return status;
}

void lk_cluster_free(lk_cluster *c) {
    if (!c) return;
    if (c->transport.own == 0 && !c->peers.lost)
        lk_message_send(c, &(struct lk_op){.kind = LK_OP_END}, NULL);
    lk_release(&c->ledger, LK_FOR_OTHER, c->models.at, (size_t)c->models.n * sizeof *c->models.at);
    lk_release(&c->ledger, LK_FOR_OTHER, c->sessions.at,
               (size_t)c->sessions.n * sizeof *c->sessions.at);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c); /* not in a ledger */
}

lk_cluster_stats lk_cluster_get_stats(const lk_cluster *c) { return c->stats; }

int32_t lk_cluster_n_peer(const lk_cluster *c) { return c ? c->transport.n_peer : 1; }
