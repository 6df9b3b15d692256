/* The ranks of a cluster as threads of one process. */
#include "support_ranks.h"

#include "lowkey_lab.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 8 };

/* What a rank offers to the others in an exchange. */
struct rank {
    struct ranks *all;
    int number;
    int lost_in; /* exchanges until it is lost; 0: never */
    lk_transport functions;
    pthread_t thread;
    lk_cluster *cluster;
    lk_status status; /* of following */
    lk_err err;
};

struct ranks {
    int n;
    struct rank rank[MAX_RANK];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool lost;
    int n_waiting;
    unsigned turn; /* counts completed meetings */
    const void *offer[MAX_RANK];
    const void *letter[MAX_RANK][MAX_RANK]; /* from, to: being sent */
};

static void lose(struct ranks *all) {
    pthread_mutex_lock(&all->lock);
    all->lost = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* Wait until every rank has come here. False if one is lost. */
static bool meet(struct ranks *all) {
    pthread_mutex_lock(&all->lock);
    unsigned turn = all->turn;
    if (++all->n_waiting == all->n) {
        all->n_waiting = 0;
        all->turn++;
        pthread_cond_broadcast(&all->changed);
    }
    while (turn == all->turn && !all->lost) pthread_cond_wait(&all->changed, &all->lock);
    bool ok = !all->lost;
    pthread_mutex_unlock(&all->lock);
    return ok;
}

/* A rank that is lost does not come to its exchange. */
static bool takes_part(struct rank *rank) {
    if (rank->lost_in > 0 && --rank->lost_in == 0) lose(rank->all);
    return !rank->all->lost;
}

static bool gather(void *user, const void *own, size_t n, void *out) {
    struct rank *rank = user;
    struct ranks *all = rank->all;
    if (!takes_part(rank)) return false;
    all->offer[rank->number] = own;
    if (!meet(all)) return false;
    for (int i = 0; i < all->n; i++) memcpy((char *)out + (size_t)i * n, all->offer[i], n);
    return meet(all);
}

static bool broadcast(void *user, int32_t from, void *data, size_t n) {
    struct rank *rank = user;
    struct ranks *all = rank->all;
    if (!takes_part(rank)) return false;
    if (rank->number == from) all->offer[from] = data;
    if (!meet(all)) return false;
    if (rank->number != from) memcpy(data, all->offer[from], n);
    return meet(all);
}

static bool send_bytes(void *user, int32_t to, const void *data, size_t n) {
    struct rank *rank = user;
    struct ranks *all = rank->all;
    (void)n;
    if (!takes_part(rank)) return false;
    pthread_mutex_lock(&all->lock);
    all->letter[rank->number][to] = data;
    pthread_cond_broadcast(&all->changed);
    while (all->letter[rank->number][to] && !all->lost)
        pthread_cond_wait(&all->changed, &all->lock);
    bool ok = !all->lost;
    pthread_mutex_unlock(&all->lock);
    return ok;
}

static bool receive_bytes(void *user, int32_t from, void *data, size_t n) {
    struct rank *rank = user;
    struct ranks *all = rank->all;
    if (!takes_part(rank)) return false;
    pthread_mutex_lock(&all->lock);
    while (!all->letter[from][rank->number] && !all->lost)
        pthread_cond_wait(&all->changed, &all->lock);
    bool ok = !all->lost;
    if (ok) memcpy(data, all->letter[from][rank->number], n);
    all->letter[from][rank->number] = NULL;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    return ok;
}

static void abort_all(void *user, const char *why) {
    struct rank *rank = user;
    (void)why;
    lose(rank->all);
}

static void *follow(void *arg) {
    struct rank *rank = arg;
    rank->status = lk_cluster_new(&rank->cluster, &rank->functions, &rank->err);
    if (rank->status == LK_OK) lk_bench_join(rank->cluster);
    if (rank->status == LK_OK) rank->status = lk_cluster_follow(rank->cluster, &rank->err);
    lk_cluster_free(rank->cluster);
    return NULL;
}

struct ranks *ranks_start(int n, lk_cluster **cluster) {
    struct ranks *all = calloc(1, sizeof *all);
    all->n = n;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    for (int i = 0; i < n; i++) {
        struct rank *rank = &all->rank[i];
        rank->all = all;
        rank->number = i;
        rank->functions = (lk_transport){.own = i,
                                         .n_peer = n,
                                         .user = rank,
                                         .gather = gather,
                                         .broadcast = broadcast,
                                         .send = send_bytes,
                                         .receive = receive_bytes,
                                         .abort = abort_all};
        if (i > 0) pthread_create(&rank->thread, NULL, follow, rank);
    }
    lk_cluster_new(&all->rank[0].cluster, &all->rank[0].functions, NULL);
    *cluster = all->rank[0].cluster;
    return all;
}

lk_status ranks_end(struct ranks *all, lk_err *err) {
    lk_status status = LK_OK;
    lk_cluster_free(all->rank[0].cluster);
    for (int i = 1; i < all->n; i++) {
        pthread_join(all->rank[i].thread, NULL);
        if (status == LK_OK && all->rank[i].status != LK_OK) {
            status = all->rank[i].status;
            *err = all->rank[i].err;
        }
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return status;
}

lk_cluster *ranks_cluster(struct ranks *all, int rank) { return all->rank[rank].cluster; }

void ranks_lose(struct ranks *all, int rank, int k) { all->rank[rank].lost_in = k; }

bool ranks_broadcast(struct ranks *all, void *data, size_t n) {
    return broadcast(&all->rank[0], 0, data, n);
}
