/* A thread that waits for the end of other processes. */
#include "rank_watch.h"

#include "output.h"
#include "xalloc.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Seconds that a rank waits for mpirun to end it, after rank 0 has ended. */
enum { PATIENCE = 5 };

/* For a signal handler, so it is global. A process has one watch. */
static struct watch {
    struct pollfd *fd; /* [n] of processes; then the one that stops the thread */
    char (*line)[128]; /* [n] what is printed when the process has ended */
    nfds_t n;
    int rank, stop[2]; /* stop: a pipe */
    int reported;      /* a line was printed */
    bool catches;      /* SIGTERM */
    pthread_t thread;
} watch;

struct rank_process rank_process_self(int rank) {
    struct stat ns = {0};
    stat("/proc/self/ns/pid", &ns);
    return (struct rank_process){.rank = rank, .pid = getpid(), .pids = (uint64_t)ns.st_ino};
}

/* A descriptor that is readable when the process has ended; -1: there is none. */
static int open_process(int pid) {
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

/* Has one of the processes ended? Prints its line, once. Safe in a signal handler. */
static bool report_ended(void) {
    for (nfds_t i = 0; i < watch.n; i++) {
        struct pollfd fd = watch.fd[i];
        if (poll(&fd, 1, 0) != 1) continue;
        bool prints = watch.rank == 0 && !__atomic_exchange_n(&watch.reported, 1, __ATOMIC_SEQ_CST);
        ssize_t n = prints ? write(STDERR_FILENO, watch.line[i], strlen(watch.line[i])) : 0;
        (void)n; /* it cannot be reported that this failed */
        return true;
    }
    return false;
}

/* mpirun sends SIGTERM to all ranks when one has died, and also when a user ends it. */
static void on_terminate(int signal_number) {
    if (report_ended()) _exit(STATUS_ERROR);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void catch_terminate(void) {
    struct sigaction action;
    if (sigaction(SIGTERM, NULL, &action) || action.sa_handler != SIG_DFL) return;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_terminate;
    sigemptyset(&action.sa_mask);
    watch.catches = sigaction(SIGTERM, &action, NULL) == 0;
}

/* Rank 0 ends by SIGTERM, so that a chat resets its terminal. A server would try to store its
 * sessions, for which it needs the lost rank. */
static void *wait_for_ends(void *unused) {
    const struct timespec moment = {.tv_nsec = 200000000}, patience = {.tv_sec = PATIENCE};
    (void)unused;
    prctl(PR_SET_NAME, "rank-watch");
    while (poll(watch.fd, watch.n + 1, -1) <= 0) {}
    if (watch.fd[watch.n].revents) return NULL; /* rank_watch_stop */
    report_ended();
    if (watch.rank == 0) kill(getpid(), SIGTERM);
    nanosleep(watch.rank == 0 ? &moment : &patience, NULL);
    _exit(STATUS_ERROR);
}

/* Add a process to the watch, if that is possible. */
static void add_process(const struct rank_process *process, int n_rank) {
    int fd = open_process(process->pid);
    if (fd < 0) return;
    snprintf(watch.line[watch.n], sizeof watch.line[0],
             "lowkey: rank %d of %d has ended; start the run again (saved sessions are whole)\n",
             process->rank, n_rank);
    watch.fd[watch.n++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

void rank_watch_start(const struct rank_process *process, size_t n, int rank, int n_rank) {
    struct rank_process self = rank_process_self(rank);
    sigset_t every, before;
    watch.rank = rank;
    watch.fd = xmalloc((n + 1) * sizeof *watch.fd);
    watch.line = xmalloc((n + 1) * sizeof *watch.line);
    for (size_t i = 0; i < n; i++)
        if (process[i].rank != rank && (rank == 0 || process[i].rank == 0) && self.pids &&
            process[i].pids == self.pids)
            add_process(&process[i], n_rank);
    if (watch.n == 0) return;
    bool ok = pipe(watch.stop) == 0;
    watch.fd[watch.n] = (struct pollfd){.fd = watch.stop[0], .events = POLLIN};
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    ok = ok && pthread_create(&watch.thread, NULL, wait_for_ends, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ok) watch.n = 0; /* as without pidfd_open */
    if (ok && rank == 0) catch_terminate();
}

void rank_watch_stop(void) {
    if (watch.n == 0) return;
    close(watch.stop[1]);
    pthread_join(watch.thread, NULL);
    watch.n = 0;
    if (watch.catches) signal(SIGTERM, SIG_DFL);
}
