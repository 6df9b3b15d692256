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

/* Start watching process [n], the ranks of this machine. This process is rank `rank` of n_rank.
 * Rank 0 watches all others: when one ends, it prints a line and exits with STATUS_ERROR, even if
 * mpirun's SIGTERM arrives first. The others watch rank 0, and exit silently if they still run some
 * seconds after it has ended. Processes in another PID namespace are not watched, and none are on
 * kernels older than Linux 5.3. */
void rank_watch_start(const struct rank_process *process, size_t n, int rank, int n_rank);

/* Ranks may end from now on. */
void rank_watch_stop(void);

#endif
