/* Ranks that exchange bytes with MPI. */
#include "ranks.h"

#include "output.h"

#ifdef LOWKEY_HAVE_MPI

#include "base/clock.h"
#include "lowkey_lab.h"
#include "rank_watch.h"
#include "xalloc.h"

#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct ranks {
    int rank, n_rank;
    lk_cluster *cluster;
};

/* ---- exchanges ---- */

enum { PIECE = 1 << 30 }; /* bytes of one exchange, at most: MPI counts with int */

/* Wait for an exchange. A rank that waits for long, because another rank computes, leaves the
 * processor to others, and more so if it waits for a user or a client. */
static bool wait_for(MPI_Request *request) {
    const double busy_seconds = 0.002, idle_seconds = 1;
    const struct timespec nap = {.tv_nsec = 50000}, idle_nap = {.tv_nsec = 1000000};
    double start = lk_now();
    for (int done = 0;;) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
        if (done) return true;
        double waited = lk_now() - start;
        if (waited <= busy_seconds)
            sched_yield(); /* the other rank may need this processor */
        else
            nanosleep(waited > idle_seconds ? &idle_nap : &nap, NULL);
    }
}

static bool gather(void *user, const void *own, size_t n, void *all) {
    MPI_Request request;
    (void)user;
    return n <= PIECE &&
           MPI_Iallgather(own, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, MPI_COMM_WORLD, &request) ==
               MPI_SUCCESS &&
           wait_for(&request);
}

static bool broadcast(void *user, int32_t from, void *data, size_t n) {
    MPI_Request request;
    (void)user;
    for (size_t at = 0; at < n; at += PIECE) {
        int count = n - at < PIECE ? (int)(n - at) : PIECE;
        if (MPI_Ibcast((char *)data + at, count, MPI_BYTE, from, MPI_COMM_WORLD, &request) !=
                MPI_SUCCESS ||
            !wait_for(&request))
            return false;
    }
    return true;
}

static bool send_bytes(void *user, int32_t to, const void *data, size_t n) {
    MPI_Request request;
    (void)user;
    return n <= PIECE &&
           MPI_Isend(data, (int)n, MPI_BYTE, to, 0, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
           wait_for(&request);
}

static bool receive_bytes(void *user, int32_t from, void *data, size_t n) {
    MPI_Request request;
    (void)user;
    return n <= PIECE &&
           MPI_Irecv(data, (int)n, MPI_BYTE, from, 0, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
           wait_for(&request);
}

static void abort_ranks(void *user, const char *why) {
    const struct ranks *ranks = user;
    print_error("rank %d of %d: %s", ranks->rank, ranks->n_rank, why);
    MPI_Abort(MPI_COMM_WORLD, STATUS_ERROR);
}

/* ---- joining ---- */

/* Did mpirun or srun start this process? Starting MPI otherwise takes a second and more. */
static bool is_started_by_mpi(void) {
    static const char *const variable[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE",
                                           "PMI_RANK"};
    for (size_t i = 0; i < sizeof variable / sizeof *variable; i++)
        if (getenv(variable[i])) return true;
    return false;
}

int ranks_join(struct ranks **out) {
    lk_err err = {0};
    int threads = MPI_THREAD_SINGLE;
    *out = NULL;
    if (!is_started_by_mpi()) return STATUS_OK;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &threads) != MPI_SUCCESS)
        return print_error("MPI could not be started");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    struct ranks *ranks = xmalloc(sizeof *ranks);
    *ranks = (struct ranks){0};
    MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks->n_rank);
    lk_status status = LK_OK;
    if (threads < MPI_THREAD_SERIALIZED)
        status = LK_E_UNSUPPORTED;
    else if (ranks->n_rank > 1)
        status = lk_cluster_new(&ranks->cluster,
                                &(lk_transport){.own = ranks->rank,
                                                .n_peer = ranks->n_rank,
                                                .user = ranks,
                                                .gather = gather,
                                                .broadcast = broadcast,
                                                .send = send_bytes,
                                                .receive = receive_bytes,
                                                .abort = abort_ranks},
                                &err);
    if (!status) {
        *out = ranks;
        return STATUS_OK;
    }
    if (ranks->rank == 0)
        print_error("%s", status == LK_E_UNSUPPORTED && !err.msg[0]
                              ? "this MPI library does not support threads"
                              : err.msg);
    MPI_Finalize();
    free(ranks);
    return STATUS_ERROR;
}

/* What rank 0 does not run on several ranks, no rank runs. */
static int refuse_command(const struct ranks *ranks, const struct command *command) {
    if (ranks->rank == 0)
        print_error("'%s' runs in one process; start it without mpirun or srun", command->name);
    return STATUS_ERROR;
}

/* Watch the processes of the ranks on this machine, and return their number: they share its memory.
 * All ranks call this. */
static int watch_local_ranks(const struct ranks *ranks) {
    MPI_Comm local;
    struct rank_process own = rank_process_self(ranks->rank), *all;
    int n = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local) !=
        MPI_SUCCESS)
        return n;
    MPI_Comm_size(local, &n);
    all = xmalloc((size_t)n * sizeof *all);
    if (MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, local) == MPI_SUCCESS)
        rank_watch_start(all, (size_t)n, ranks->rank, ranks->n_rank);
    free(all);
    MPI_Comm_free(&local);
    return n;
}

/* mpirun passes a signal that ends it to all ranks. Rank 0 decides what to do about it, such as to
 * save sessions, for which it needs the others. Those end when rank 0 does, or by SIGKILL. */
static lk_status follow(struct ranks *ranks) {
    lk_err err = {0};
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    lk_bench_join(ranks->cluster);
    return lk_cluster_follow(ranks->cluster, &err); /* abort_ranks has said why */
}

int ranks_run(struct ranks *ranks, const struct command *command, int argc, char **argv) {
    struct command with = *command;
    int status = STATUS_OK;
    if (!ranks) return command->run(command, argc, argv);
    with.cluster = ranks->cluster;
    with.n_local_rank = watch_local_ranks(ranks);
    if (ranks->rank == 0 && with.n_local_rank < ranks->n_rank)
        print_error("warning: ranks on other machines get the text and the cache without "
                    "encryption; use a trusted network only");
    if (ranks->cluster && !command->on_ranks)
        status = refuse_command(ranks, command);
    else if (ranks->rank == 0)
        status = with.run(&with, argc, argv);
    else if (follow(ranks))
        status = STATUS_ERROR;
    rank_watch_stop();
    lk_cluster_free(ranks->cluster);
    MPI_Finalize();
    free(ranks);
    return status;
}

#else

int ranks_join(struct ranks **out) {
    *out = NULL;
    return STATUS_OK;
}

int ranks_run(struct ranks *ranks, const struct command *command, int argc, char **argv) {
    (void)ranks;
    return command->run(command, argc, argv);
}

#endif
