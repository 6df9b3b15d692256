/* Ranks that compute together: joining, leading operations, agreeing on results. */
#include "engine/cluster.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

lk_status lk_cluster_fail_lost(lk_err *err) {
    return lk_fail(err, LK_E_IO, "a rank of the cluster was lost; start the run again");
}

/* ---- exchanges ---- */

/* Count an exchange that started at `start`, in which this rank sent and received so many bytes. */
static bool count_exchange(struct lk_cluster *c, double start, size_t sent, size_t received,
                           bool ok) {
    c->stats.n_exchange++;
    c->stats.bytes += received;
    c->stats.bytes_sent += sent;
    c->stats.seconds += lk_now() - start;
    if (!ok) c->lost = true;
    return ok;
}

bool lk_cluster_gather(struct lk_cluster *c, const void *own, size_t n, void *all) {
    double start = lk_now();
    size_t others = n * (size_t)(c->ranks.n_rank - 1);
    return !c->lost &&
           count_exchange(c, start, others, others, c->ranks.gather(c->ranks.user, own, n, all));
}

/* n bytes of rank `from` to all. */
static bool broadcast_from(struct lk_cluster *c, int from, void *data, size_t n) {
    double start = lk_now();
    bool sends = from == c->ranks.rank;
    size_t others = n * (size_t)(c->ranks.n_rank - 1);
    return !c->lost && count_exchange(c, start, sends ? others : 0, sends ? 0 : n,
                                      c->ranks.broadcast(c->ranks.user, from, data, n));
}

bool lk_cluster_broadcast(struct lk_cluster *c, void *data, size_t n) {
    return broadcast_from(c, 0, data, n);
}

enum { PIECE = 1 << 26 }; /* bytes of one message between two ranks, at most */

bool lk_cluster_send(struct lk_cluster *c, int to, const void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->ranks.send(c->ranks.user, to, (const char *)data + at,
                           n - at < PIECE ? n - at : PIECE);
    return count_exchange(c, start, n, 0, ok);
}

bool lk_cluster_receive(struct lk_cluster *c, int from, void *data, size_t n) {
    double start = lk_now();
    bool ok = !c->lost;
    for (size_t at = 0; ok && at < n; at += PIECE)
        ok = c->ranks.receive(c->ranks.user, from, (char *)data + at,
                              n - at < PIECE ? n - at : PIECE);
    return count_exchange(c, start, 0, n, ok);
}

/* ---- stages ---- */

/* A ring: every rank passes on what it has got last. Neighbors do not both send first. */
bool lk_cluster_gather_stage(struct lk_cluster *c, int n_stage, const void *own, size_t n,
                             void *all) {
    if (n_stage <= 1) return lk_cluster_gather(c, own, n, all);
    int n_shard = lk_cluster_shards(c, n_stage), shard = c->ranks.rank % n_shard,
        first = c->ranks.rank - shard, right = first + (shard + 1) % n_shard,
        left = first + (shard + n_shard - 1) % n_shard;
    bool ok = true;
    memcpy((char *)all + (size_t)shard * n, own, n);
    for (int step = 1; ok && step < n_shard; step++) {
        const char *out = (char *)all + (size_t)((shard - step + 1 + n_shard) % n_shard) * n;
        char *in = (char *)all + (size_t)((shard - step + n_shard) % n_shard) * n;
        if (shard % 2 == 0) ok = lk_cluster_send(c, right, out, n);
        ok = ok && lk_cluster_receive(c, left, in, n);
        if (shard % 2) ok = ok && lk_cluster_send(c, right, out, n);
    }
    return ok;
}

bool lk_cluster_send_next(struct lk_cluster *c, int n_stage, const float *x, size_t n) {
    return lk_cluster_send(c, c->ranks.rank + lk_cluster_shards(c, n_stage), x, n * sizeof *x);
}

bool lk_cluster_receive_previous(struct lk_cluster *c, int n_stage, float *x, size_t n) {
    return lk_cluster_receive(c, c->ranks.rank - lk_cluster_shards(c, n_stage), x, n * sizeof *x);
}

bool lk_cluster_send_logits(struct lk_cluster *c, int n_stage, const float *from, float *to,
                            size_t n) {
    int last = c->ranks.n_rank - lk_cluster_shards(c, n_stage);
    if (c->ranks.rank == 0) return lk_cluster_receive(c, last, to, n * sizeof *to);
    return c->ranks.rank != last || lk_cluster_send(c, 0, from, n * sizeof *from);
}

lk_status lk_cluster_set_stages(lk_cluster *c, int32_t n_stage, lk_err *err) {
    if (n_stage < 1 || c->ranks.n_rank % n_stage)
        return lk_fail(err, LK_E_ARG,
                       "%d ranks cannot be divided into %d stages; the number of stages must be a "
                       "divisor of the number of ranks",
                       c->ranks.n_rank, n_stage);
    c->n_stage = n_stage;
    return LK_OK;
}

void lk_cluster_abort(struct lk_cluster *c, const char *why) {
    if (!c || c->lost) return;
    c->lost = true;
    c->ranks.abort(c->ranks.user, why);
}

/* ---- agreeing ---- */

lk_status lk_cluster_agree(struct lk_cluster *c, lk_status status, lk_err *err) {
    int32_t own = status, all[LK_MAX_RANKS];
    lk_err why = {.code = status};
    int first = 0;
    if (!c) return status;
    if (!lk_cluster_gather(c, &own, sizeof own, all)) return lk_cluster_fail_lost(err);
    while (first < c->ranks.n_rank && all[first] == LK_OK) first++;
    if (first == c->ranks.n_rank) return LK_OK;
    if (first == c->ranks.rank && err) why = *err;
    if (!broadcast_from(c, first, &why, sizeof why)) return lk_cluster_fail_lost(err);
    if (first == c->ranks.rank) return status;
    return lk_fail(err, (lk_status)all[first], "rank %d: %.450s", first, why.msg);
}

bool lk_cluster_all(struct lk_cluster *c, bool ok) {
    uint8_t own = ok, all[LK_MAX_RANKS];
    if (!c) return ok;
    if (!lk_cluster_gather(c, &own, sizeof own, all)) return false;
    for (int i = 0; i < c->ranks.n_rank; i++)
        if (!all[i]) return false;
    return true;
}

/* ---- operations ---- */

const lk_ranks *lk_cluster_ranks(const struct lk_cluster *c) { return c ? &c->ranks : NULL; }

/* Concatenate the parts of a payload. */
static void join_parts(const struct lk_op_part *part, int n_part, char *out) {
    for (int i = 0; i < n_part; out += part[i++].n)
        if (part[i].n) memcpy(out, part[i].data, part[i].n);
}

/* Send a message and its payload to the other ranks. */
static lk_status send_op(struct lk_cluster *c, struct lk_op *op, const struct lk_op_part *part,
                         int n_part, lk_err *err) {
    size_t n = 0;
    for (int i = 0; i < n_part; i++) n += part[i].n;
    char *payload = op->payload;
    bool follows = n > sizeof op->payload;
    if (follows) payload = lk_alloc(&c->ledger, LK_FOR_OTHER, n);
    if (!payload) return lk_fail(err, LK_E_NOMEM, "out of memory for a message of %zu bytes", n);
    join_parts(part, n_part, payload);
    op->magic = LK_OP_MAGIC;
    op->n_payload = n;
    bool ok = lk_cluster_broadcast(c, op, sizeof *op) &&
              (!follows || lk_cluster_broadcast(c, payload, n));
    if (follows) lk_release(&c->ledger, LK_FOR_OTHER, payload, n);
    return ok ? LK_OK : lk_cluster_fail_lost(err);
}

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

bool lk_cluster_is_busy(struct lk_cluster *c) {
    pthread_mutex_lock(&c->lock);
    bool busy = c->depth > 0 && pthread_equal(c->thread, pthread_self());
    pthread_mutex_unlock(&c->lock);
    return busy;
}

lk_status lk_cluster_lead(struct lk_cluster *c, struct lk_op op, const struct lk_op_part *part,
                          int n_part, lk_err *err) {
    if (!c) return LK_OK;
    begin_turn(c, 1);
    lk_status status = c->lost ? lk_cluster_fail_lost(err) : LK_OK;
    if (status == LK_OK && c->ranks.rank == 0 && c->depth == 1)
        status = send_op(c, &op, part, n_part, err);
    if (status != LK_OK) end_turn(c, 1);
    return status;
}

void lk_cluster_done(struct lk_cluster *c) {
    if (c) end_turn(c, 1);
}

bool lk_cluster_report(struct lk_cluster *c, lk_progress progress, void *user, uint64_t done,
                       uint64_t total) {
    if (!progress) return true;
    if (!c) return progress(user, done, total);
    int depth = c->depth;
    end_turn(c, depth);
    bool go_on = progress(user, done, total);
    begin_turn(c, depth);
    if (c->ranks.rank > 0) return go_on;
    struct lk_op op = {.kind = LK_OP_GO_ON, .flag = go_on};
    return send_op(c, &op, NULL, 0, NULL) == LK_OK && go_on;
}

lk_status lk_cluster_check_led(struct lk_cluster *c, lk_err *err) {
    if (!c || lk_cluster_is_busy(c)) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "this works in one process only; open the model without a cluster");
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

/* ---- joining ---- */

/* All ranks must be of one version: they send each other structs. */
static lk_status check_version(struct lk_cluster *c, lk_err *err) {
    char first[32] = {0};
    lk_err why = {0};
    strncpy(first, LOWKEY_VERSION, sizeof first - 1);
    if (!lk_cluster_broadcast(c, first, sizeof first)) return lk_cluster_fail_lost(err);
    first[sizeof first - 1] = 0;
    lk_status status = strcmp(first, LOWKEY_VERSION) == 0
                           ? LK_OK
                           : lk_fail(&why, LK_E_UNSUPPORTED,
                                     "this is lowkey %s, but rank 0 is %s; install the "
                                     "same version on all machines",
                                     LOWKEY_VERSION, first);
    status = lk_cluster_agree(c, status, &why);
    return status == LK_OK ? LK_OK : lk_fail(err, status, "%s", why.msg);
}

lk_status lk_cluster_new(lk_cluster **out, const lk_ranks *ranks, lk_err *err) {
    struct lk_ledger ledger = {0}; /* the cluster's own ledger does not exist yet */
    if (ranks->n_rank < 1 || ranks->n_rank > LK_MAX_RANKS || ranks->rank < 0 ||
        ranks->rank >= ranks->n_rank)
        return lk_fail(err, LK_E_ARG, "rank %d of %d is not possible; there may be 1 to %d ranks",
                       ranks->rank, ranks->n_rank, LK_MAX_RANKS);
    struct lk_cluster *c = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "out of memory for a cluster");
    c->ranks = *ranks;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    lk_status status = check_version(c, err);
    if (status == LK_OK) {
        *out = c;
        return LK_OK;
    }
    c->lost = true; /* the others are not following yet */
    lk_cluster_free(c);
    return status;
}

void lk_cluster_free(lk_cluster *c) {
    if (!c) return;
    if (c->ranks.rank == 0 && !c->lost)
        send_op(c, &(struct lk_op){.kind = LK_OP_END}, NULL, 0, NULL);
    lk_release(&c->ledger, LK_FOR_OTHER, c->models.at, (size_t)c->models.n * sizeof *c->models.at);
    lk_release(&c->ledger, LK_FOR_OTHER, c->sessions.at,
               (size_t)c->sessions.n * sizeof *c->sessions.at);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c); /* not in a ledger */
}

lk_cluster_stats lk_cluster_get_stats(const lk_cluster *c) { return c->stats; }

int32_t lk_cluster_n_rank(const lk_cluster *c) { return c ? c->ranks.n_rank : 1; }
