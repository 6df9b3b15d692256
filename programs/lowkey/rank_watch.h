/* Notices that a process of this machine that computes together with this one has ended. MPI
 * reports no such thing: a rank that waits for a lost one waits for ever, until mpirun ends it. */
#ifndef LK_LOWKEY_RANK_WATCH_H
#define LK_LOWKEY_RANK_WATCH_H

#include <stddef.h>
#include <stdint.h>

/* A process that can be watched. */
struct rank_process {
    int32_t rank, pid;
    uint64_t pids; /* the namespace that its pid is from */
};

/* This process. */
struct rank_process rank_process_self(int rank);

/* Start to watch those of process [n] that can be seen from here, one of which is this process, on
 * behalf of rank `rank` of n_rank. Rank 0 watches all others. When one ends, it prints a line and
 * ends with STATUS_ERROR, also if it gets the SIGTERM of mpirun first. The others watch rank 0, and
 * end without a line if they still run some seconds after it. Ranks on other machines, and all if
 * the kernel is older than Linux 5.3, are not watched. */
void rank_watch_start(const struct rank_process *process, size_t n, int rank, int n_rank);

/* Ranks may end from now on. */
void rank_watch_stop(void);

#endif
