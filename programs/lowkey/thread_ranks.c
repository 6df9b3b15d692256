/* Exchanges between threads: every rank offers a pointer, and the others copy from there. */
#include "thread_ranks.h"

#include "base/spin_wait.h"
#include "output.h"
#include "xalloc.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rank {
    struct thread_ranks *all;
    int number;
    const struct cpu_group *group;
    pthread_t thread;
    lk_cluster *cluster; /* of rank 0 */
    const void *offer;   /* what the others may read between two meetings */
};

/* Bytes that one rank sends to another one. */
struct letter {
    const void *data;
    int full; /* 1 until the receiver has copied them */
};

struct thread_ranks {
    int n;
    int n_waiting;         /* ranks that have come to the meeting */
    int turn;              /* counts meetings */
    struct letter *letter; /* [n] from [n] to */
    struct cpu_group group[MAX_CPU_GROUPS];
    struct rank rank[]; /* [n] */
};

/* ---- exchanges ---- */

/* Wait until every rank has come here. What a rank wrote before is visible to all afterwards. */
static void meet(struct thread_ranks *all) {
    int turn = __atomic_load_n(&all->turn, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&all->n_waiting, 1, __ATOMIC_SEQ_CST) < all->n) {
        lk_ggml_wait(&all->turn, turn);
        return;
    }
    __atomic_store_n(&all->n_waiting, 0, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&all->turn, 1, __ATOMIC_SEQ_CST);
    lk_ggml_wake(&all->turn);
}

static bool gather(void *user, const void *own, size_t n, void *out) {
    struct rank *rank = user;
    struct thread_ranks *all = rank->all;
    rank->offer = own;
    meet(all);
    for (int i = 0; i < all->n; i++) memcpy((char *)out + (size_t)i * n, all->rank[i].offer, n);
    meet(all); /* `own` may change only when all have read it */
    return true;
}

static bool broadcast(void *user, int32_t from, void *data, size_t n) {
    struct rank *rank = user;
    struct thread_ranks *all = rank->all;
    rank->offer = data;
    meet(all);
    if (rank->number != from) memcpy(data, all->rank[from].offer, n);
    meet(all);
    return true;
}

static void set_full(struct letter *letter, int full) {
    __atomic_store_n(&letter->full, full, __ATOMIC_SEQ_CST);
    lk_ggml_wake(&letter->full);
}

static bool send_bytes(void *user, int32_t to, const void *data, size_t n) {
    struct rank *rank = user;
    struct letter *letter = &rank->all->letter[rank->number * rank->all->n + to];
    (void)n;
    letter->data = data;
    set_full(letter, 1);
    lk_ggml_wait(&letter->full, 1);
    return true;
}

static bool receive_bytes(void *user, int32_t from, void *data, size_t n) {
    struct rank *rank = user;
    struct letter *letter = &rank->all->letter[from * rank->all->n + rank->number];
    lk_ggml_wait(&letter->full, 0);
    memcpy(data, letter->data, n);
    set_full(letter, 0);
    return true;
}

/* Other ranks wait for this one, and it cannot go on: end the process, as MPI_Abort would. */
static void abort_ranks(void *user, const char *why) {
    const struct rank *rank = user;
    print_error("rank %d of %d: %s", rank->number, rank->all->n, why);
    _exit(STATUS_ERROR);
}

/* ---- starting and ending ---- */

/* Join the cluster. All ranks do so at the same time. */
static lk_status join(struct rank *rank, lk_cluster **cluster, lk_err *err) {
    return lk_cluster_new(cluster,
                          &(lk_ranks){.rank = rank->number,
                                      .n_rank = rank->all->n,
                                      .user = rank,
                                      .gather = gather,
                                      .broadcast = broadcast,
                                      .send = send_bytes,
                                      .receive = receive_bytes,
                                      .abort = abort_ranks},
                          err);
}

static void *follow(void *arg) {
    struct rank *rank = arg;
    lk_cluster *cluster = NULL;
    lk_err err = {0};
    if (!cpu_group_enter(rank->group)) abort_ranks(rank, "its processors cannot be used");
    if (join(rank, &cluster, &err)) abort_ranks(rank, err.msg);
    lk_cluster_follow(cluster, &err); /* after an error, abort_ranks has ended the process */
    lk_cluster_free(cluster);
    return NULL;
}

/* The groups of --numa. Returns a STATUS_*. */
static int read_groups(const char *numa, struct cpu_group group[MAX_CPU_GROUPS], int32_t *n) {
    cpu_set_t allowed;
    char *end;
    long asked = strtol(numa, &end, 10);
    bool by_node = strcmp(numa, "auto") == 0;
    if (!by_node && (*end || end == numa || asked < 1 || asked > MAX_CPU_GROUPS))
        return print_error("--numa: '%s' is neither auto nor a number from 1 to %d", numa,
                           MAX_CPU_GROUPS);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return print_error("--numa: the processors of this machine cannot be read");
    *n = cpu_groups_make("", &allowed, by_node ? 0 : (int)asked, group);
    if (*n > 0) return STATUS_OK;
    if (by_node)
        return print_error("--numa: there are more than %d memory nodes; give a number",
                           MAX_CPU_GROUPS);
    return print_error("--numa: %s groups need as many processors, but this process may use %d",
                       numa, CPU_COUNT(&allowed));
}

int thread_ranks_start(struct thread_ranks **out, const char *numa, lk_cluster **cluster,
                       int32_t *n_group) {
    struct cpu_group group[MAX_CPU_GROUPS];
    sigset_t every, before;
    lk_err err = {0};
    int status = read_groups(numa, group, n_group), n = *n_group;
    if (status || n == 1) return status;
    struct thread_ranks *all = xmalloc(sizeof *all + (size_t)n * sizeof all->rank[0]);
    *all = (struct thread_ranks){.n = n};
    memcpy(all->group, group, (size_t)n * sizeof *group);
    all->letter = xmalloc((size_t)n * (size_t)n * sizeof *all->letter);
    memset(all->letter, 0, (size_t)n * (size_t)n * sizeof *all->letter);
    for (int i = 0; i < n; i++)
        all->rank[i] = (struct rank){.all = all, .number = i, .group = &all->group[i]};
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    for (int i = 1; i < n; i++)
        if (pthread_create(&all->rank[i].thread, NULL, follow, &all->rank[i]))
            abort_ranks(&all->rank[i], "its thread cannot be started");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!cpu_group_enter(&all->group[0]))
        abort_ranks(&all->rank[0], "its processors cannot be used");
    if (join(&all->rank[0], &all->rank[0].cluster, &err)) abort_ranks(&all->rank[0], err.msg);
    *cluster = all->rank[0].cluster;
    *out = all;
    return STATUS_OK;
}

void thread_ranks_end(struct thread_ranks *all) {
    if (!all) return;
    lk_cluster_free(all->rank[0].cluster);
    for (int i = 1; i < all->n; i++) pthread_join(all->rank[i].thread, NULL);
    free(all->letter);
    free(all);
}
