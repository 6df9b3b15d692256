/* What the peers exchange: while they compute a pass, partial attention, hidden states between
 * stages, logits, and which entries have failed; while they save and load, rows. */
#include "cluster/peer_exchange.h"

#include "base/clock.h"
#include "engine/batch.h"
#include "lowkey_serve.h"

#include <string.h>

enum { PIECE = 1 << 26 }; /* bytes of one message between two peers, at most */

static bool send_to(struct lk_cluster *c, int to, const void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->peers.lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->transport.send(c->transport.user, to, (const char *)data + at,
                               n - at < PIECE ? n - at : PIECE);
    return lk_cluster_count(c, start, n, 0, ok);
}

static bool receive_from(struct lk_cluster *c, int from, void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->peers.lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->transport.receive(c->transport.user, from, (char *)data + at,
                                  n - at < PIECE ? n - at : PIECE);
    return lk_cluster_count(c, start, 0, n, ok);
}

/* A ring: every peer passes on what it has got last. Neighbors do not both send first. */
static bool gather_stage(struct lk_peers *peers, const struct lk_model *model, const void *own,
                         size_t n, void *all) {
    struct lk_cluster *c = lk_cluster_of(peers);
    int n_stage = lk_cluster_n_stage(model);
    if (n_stage <= 1) return lk_cluster_gather(c, own, n, all);
    int n_share = lk_cluster_shares(c, n_stage), share = c->transport.own % n_share,
        first = c->transport.own - share, right = first + (share + 1) % n_share,
        left = first + (share + n_share - 1) % n_share;
    bool ok = true;
    memcpy((char *)all + (size_t)share * n, own, n);
    for (int step = 1; ok && step < n_share; step++) {
        const char *out = (char *)all + (size_t)((share - step + 1 + n_share) % n_share) * n;
        char *in = (char *)all + (size_t)((share - step + n_share) % n_share) * n;
        if (share % 2 == 0) ok = send_to(c, right, out, n);
        ok = ok && receive_from(c, left, in, n);
        if (share % 2) ok = ok && send_to(c, right, out, n);
    }
    return ok;
}

static bool send_next(struct lk_peers *peers, const struct lk_model *model, const float *x,
                      size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    return send_to(c, c->transport.own + lk_cluster_shares(c, lk_cluster_n_stage(model)), x,
                   n * sizeof *x);
}

static bool receive_previous(struct lk_peers *peers, const struct lk_model *model, float *x,
                             size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    return receive_from(c, c->transport.own - lk_cluster_shares(c, lk_cluster_n_stage(model)), x,
                        n * sizeof *x);
}

/* The last stage computes logits, and peer 0 needs them. */
static bool send_logits(struct lk_peers *peers, const struct lk_model *model, float *x, size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    int n_stage = lk_cluster_n_stage(model),
        last = c->transport.n_peer - lk_cluster_shares(c, n_stage);
    if (n_stage <= 1) return true;
    if (c->transport.own == 0) return receive_from(c, last, x, n * sizeof *x);
    return c->transport.own != last || send_to(c, 0, x, n * sizeof *x);
}

/* Build the pass on all peers, of the entries that failed on none. status: of lk_batch_build on
 * this peer. One exchange if nothing failed. */
static lk_status agree_on_entries(struct lk_peers *peers, struct lk_pass *pass,
                                  lk_batch_entry *entry, size_t n, lk_status status, lk_err *err) {
    struct lk_cluster *c = lk_cluster_of(peers);
    bool ok = !status;
    for (size_t i = 0; i < n; i++) ok = ok && !entry[i].err.code;
    if (lk_cluster_all(c, ok)) return LK_OK;
    status = lk_cluster_agree(peers, status, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        bool prepared = !entry[i].err.code;
        lk_cluster_agree(peers, entry[i].err.code, &entry[i].err);
        if (prepared && entry[i].err.code) lk_cache_trim(entry[i].session->cache);
    }
    return lk_cluster_agree(peers, lk_batch_build(pass, entry, n, err), err);
}

/* Mark sequences as failed if their nodes failed on another peer. */
static void agree_on_nodes(struct lk_peers *peers, struct lk_seq *seq, size_t n) {
    struct lk_cluster *c = lk_cluster_of(peers);
    bool ok = true;
    for (size_t i = 0; i < n; i++) ok = ok && !seq[i].failed;
    if (lk_cluster_all(c, ok)) return;
    for (size_t i = 0; i < n; i++) {
        lk_err why = {0};
        seq[i].failed = (int)lk_cluster_agree(peers, (lk_status)seq[i].failed, &why);
    }
}

/* ---- rows on their way to and from files ---- */

enum {
    SAVE_PIECE = 1 << 16, /* bytes of one message to peer 0 */
    MERGE_PIECE = 2048    /* indices */
};

static struct lk_cluster *cluster_of(struct lk_save_link *link) {
    return (struct lk_cluster *)((char *)link - offsetof(struct lk_cluster, link));
}

/* Pieces as peer 0 receives them. */
static bool send_pieces(struct lk_cluster *c, const char *data, size_t n) {
    bool ok = true;
    for (size_t at = 0, now; at < n; at += now) {
        now = n - at < SAVE_PIECE ? n - at : SAVE_PIECE;
        ok = send_to(c, 0, data + at, now) && ok;
    }
    return ok;
}

static bool put(struct lk_save_link *link, const struct lk_writer *writer, int holder,
                const void *data, size_t n) {
    struct lk_cluster *c = cluster_of(link);
    char room[SAVE_PIECE];
    bool ok = true;
    if (link->own > 0 && link->own != holder) return true;
    if (link->own > 0) return send_pieces(c, data, n);
    if (holder == 0) return writer && writer->put(writer->user, data, n);
    for (size_t at = 0, now; at < n; at += now) {
        now = n - at < SAVE_PIECE ? n - at : SAVE_PIECE;
        ok = receive_from(c, holder, room, now) && ok;
        ok = ok && writer && writer->put(writer->user, room, now);
    }
    return ok;
}

static bool merge(struct lk_save_link *link, int first, int n_holder, int32_t *index, size_t n) {
    struct lk_cluster *c = cluster_of(link);
    int32_t other[MERGE_PIECE];
    bool ok = true;
    for (int holder = first > 0 ? first : 1; holder < first + n_holder; holder++)
        for (size_t at = 0, now; at < n; at += now) {
            now = n - at < MERGE_PIECE ? n - at : MERGE_PIECE;
            if (link->own == holder) ok = send_to(c, 0, index + at, now * sizeof *index) && ok;
            if (link->own > 0) continue;
            bool received = receive_from(c, holder, other, now * sizeof *other);
            for (size_t i = 0; received && i < now; i++)
                /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): received */
                if (other[i] >= 0) index[at + i] = other[i];
            ok = ok && received;
        }
    return ok;
}

static bool broadcast(struct lk_save_link *link, int from, void *data, size_t n) {
    return lk_cluster_broadcast_from(cluster_of(link), from, data, n);
}

void lk_cluster_set_exchanges(struct lk_cluster *c) {
    c->link = (struct lk_save_link){c->transport.own, put, merge, broadcast};
    struct lk_peers *peers = &c->peers;
    peers->link = &c->link;
    peers->gather = gather_stage;
    peers->send = send_next;
    peers->receive = receive_previous;
    peers->logits = send_logits;
    peers->agree_on_entries = agree_on_entries;
    peers->agree_on_nodes = agree_on_nodes;
}
