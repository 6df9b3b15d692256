/* Ranks (lowkey_cluster.h) that are threads of this process, each on its own group of processors.
 *
 * Rank 0 is the calling thread. The others follow it in threads that get no signals: Ctrl-C works
 * as in one process. All ranks share memory, so that an exchange is a copy between two barriers. */
#ifndef LK_LOWKEY_THREAD_RANKS_H
#define LK_LOWKEY_THREAD_RANKS_H

#include "cpu_groups.h"
#include "lowkey_cluster.h"

struct thread_ranks;

/* Start ranks for the value of --numa: "auto" or a number. The calling thread enters the first
 * group of processors. *cluster: that of rank 0, for lk_model_open_cluster. *out is owned:
 * thread_ranks_end, after all models of the cluster. If there is only one group, nothing happens,
 * and *n is 1. Returns a STATUS_*, after printing an error. */
int thread_ranks_start(struct thread_ranks **out, const char *numa, lk_cluster **cluster,
                       int32_t *n);

/* End all ranks. `ranks` may be NULL. */
void thread_ranks_end(struct thread_ranks *ranks);

#endif
