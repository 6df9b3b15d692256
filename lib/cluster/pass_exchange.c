/* What the ranks exchange while they compute a pass: partial attention, hidden states between
 * stages, logits, and which entries have failed. */
#include "cluster/pass_exchange.h"

#include "base/clock.h"
#include "engine/batch.h"
#include "lowkey_serve.h"

#include <string.h>

enum { PIECE = 1 << 26 }; /* bytes of one message between two ranks, at most */

static bool send_to(struct lk_cluster *c, int to, const void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->peers.lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->ranks.send(c->ranks.user, to, (const char *)data + at,
                           n - at < PIECE ? n - at : PIECE);
    return lk_cluster_count(c, start, n, 0, ok);
}

static bool receive_from(struct lk_cluster *c, int from, void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->peers.lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->ranks.receive(c->ranks.user, from, (char *)data + at,
                              n - at < PIECE ? n - at : PIECE);
    return lk_cluster_count(c, start, 0, n, ok);
}

/* A ring: every rank passes on what it has got last. Neighbors do not both send first. */
static bool gather_stage(struct lk_peers *peers, int n_stage, const void *own, size_t n,
                         void *all) {
    struct lk_cluster *c = lk_cluster_of(peers);
    if (n_stage <= 1) return lk_cluster_gather(c, own, n, all);
    int n_shard = lk_cluster_shards(c, n_stage), shard = c->ranks.rank % n_shard,
        first = c->ranks.rank - shard, right = first + (shard + 1) % n_shard,
        left = first + (shard + n_shard - 1) % n_shard;
    bool ok = true;
    memcpy((char *)all + (size_t)shard * n, own, n);
    for (int step = 1; ok && step < n_shard; step++) {
        const char *out = (char *)all + (size_t)((shard - step + 1 + n_shard) % n_shard) * n;
        char *in = (char *)all + (size_t)((shard - step + n_shard) % n_shard) * n;
        if (shard % 2 == 0) ok = send_to(c, right, out, n);
        ok = ok && receive_from(c, left, in, n);
        if (shard % 2) ok = ok && send_to(c, right, out, n);
    }
    return ok;
}

static bool send_next(struct lk_peers *peers, int n_stage, const float *x, size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    return send_to(c, c->ranks.rank + lk_cluster_shards(c, n_stage), x, n * sizeof *x);
}

static bool receive_previous(struct lk_peers *peers, int n_stage, float *x, size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    return receive_from(c, c->ranks.rank - lk_cluster_shards(c, n_stage), x, n * sizeof *x);
}

static bool send_logits(struct lk_peers *peers, int n_stage, const float *from, float *to,
                        size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    int last = c->ranks.n_rank - lk_cluster_shards(c, n_stage);
    if (c->ranks.rank == 0) return receive_from(c, last, to, n * sizeof *to);
    return c->ranks.rank != last || send_to(c, 0, from, n * sizeof *from);
}

/* Build the pass on all ranks, of the entries that failed on none. status: of lk_batch_build on
 * this rank. One exchange if nothing failed. */
static lk_status agree_on_entries(struct lk_peers *peers, struct lk_pass *pass,
                                  lk_batch_entry *entry, size_t n, lk_status status, lk_err *err) {
    struct lk_cluster *c = lk_cluster_of(peers);
    bool ok = !status;
    for (size_t i = 0; i < n; i++) ok = ok && !entry[i].err.code;
    if (lk_cluster_all(c, ok)) return LK_OK;
    status = lk_agree(peers, status, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        bool prepared = !entry[i].err.code;
        lk_agree(peers, entry[i].err.code, &entry[i].err);
        if (prepared && entry[i].err.code) lk_cache_trim(entry[i].session->cache);
    }
    return lk_agree(peers, lk_batch_build(pass, entry, n, err), err);
}

/* Mark sequences as failed if their nodes failed on another rank. */
static void agree_on_nodes(struct lk_peers *peers, struct lk_seq *seq, size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    bool ok = true;
    for (size_t i = 0; i < n; i++) ok = ok && !seq[i].failed;
    if (lk_cluster_all(c, ok)) return;
    for (size_t i = 0; i < n; i++) {
        lk_err why = {0};
        seq[i].failed = (int)lk_agree(peers, (lk_status)seq[i].failed, &why);
    }
}

void lk_cluster_set_exchanges(struct lk_peers *peers) {
    peers->gather = gather_stage;
    peers->send = send_next;
    peers->receive = receive_previous;
    peers->logits = send_logits;
    peers->agree_on_entries = agree_on_entries;
    peers->agree_on_nodes = agree_on_nodes;
}
