/* What the other files of a cluster build on: exchanges, agreeing on results, and handles. */
#include "cluster/cluster.h"

#include "base/clock.h"

#include <string.h>

/* ---- exchanges ---- */

bool lk_cluster_count(struct lk_cluster *c, double start, size_t sent, size_t received, bool ok) {
    c->stats.n_exchange++;
    c->stats.bytes += received;
    c->stats.bytes_sent += sent;
    c->stats.seconds += lk_now() - start;
    if (!ok) c->peers.lost = true;
    return ok;
}

bool lk_cluster_gather(struct lk_cluster *c, const void *own, size_t n, void *all) {
    double start = lk_now();
    size_t others = n * (size_t)(c->transport.n_peer - 1);
    return !c->peers.lost && lk_cluster_count(c, start, others, others,
                                              c->transport.gather(c->transport.user, own, n, all));
}

bool lk_cluster_broadcast_from(struct lk_cluster *c, int from, void *data, size_t n) {
    double start = lk_now();
    bool sends = from == c->transport.own;
    size_t others = n * (size_t)(c->transport.n_peer - 1);
    return !c->peers.lost &&
           lk_cluster_count(c, start, sends ? others : 0, sends ? 0 : n,
                            c->transport.broadcast(c->transport.user, from, data, n));
}

bool lk_cluster_broadcast(struct lk_cluster *c, void *data, size_t n) {
    return lk_cluster_broadcast_from(c, 0, data, n);
}

void lk_cluster_abort(struct lk_cluster *c, const char *why) {
    if (c->peers.lost) return;
    c->peers.lost = true;
    c->transport.abort(c->transport.user, why);
}

/* ---- agreeing ---- */

lk_status lk_cluster_agree(struct lk_peers *peers, lk_status status, lk_err *err) {
    struct lk_cluster *c = lk_cluster_of(peers);
    int32_t own = status, all[LK_MAX_PEERS];
    lk_err why = {.code = status};
    int first = 0;
    if (!lk_cluster_gather(c, &own, sizeof own, all)) return lk_fail_lost(err);
    while (first < c->transport.n_peer && !all[first]) first++;
    if (first == c->transport.n_peer) return LK_OK;
    if (first == c->transport.own && err) why = *err;
    if (!lk_cluster_broadcast_from(c, first, &why, sizeof why)) return lk_fail_lost(err);
    if (first == c->transport.own) return status;
    return lk_fail(err, (lk_status)all[first], "rank %d: %.450s", first, why.msg);
}

bool lk_cluster_all(struct lk_cluster *c, bool ok) {
    uint8_t own = ok, all[LK_MAX_PEERS];
    if (!lk_cluster_gather(c, &own, sizeof own, all)) return false;
    for (int i = 0; i < c->transport.n_peer; i++)
        if (!all[i]) return false;
    return true;
}

/* ---- handles ---- */

int32_t lk_handles_add(struct lk_cluster *c, struct lk_handles *handles, void *handle) {
    int32_t i = 0;
    while (i < handles->n && handles->at[i]) i++;
    if (i == handles->n) {
        size_t old = (size_t)handles->n * sizeof *handles->at;
        if (!lk_grow(&c->ledger, LK_FOR_OTHER, (void **)&handles->at, old,
                     old + sizeof *handles->at))
            return -1;
        handles->n++;
    }
    handles->at[i] = handle;
    return i;
}

void lk_handles_remove(struct lk_handles *handles, const void *handle) {
    for (int32_t i = 0; i < handles->n; i++)
        if (handles->at[i] == handle) handles->at[i] = NULL;
}

void *lk_handles_get(const struct lk_handles *handles, int32_t number) {
    return number >= 0 && number < handles->n ? handles->at[number] : NULL;
}
