/* The ranks of a cluster as threads of one process. */
#ifndef LK_TESTS_SUPPORT_RANKS_H
#define LK_TESTS_SUPPORT_RANKS_H

#include "lowkey_cluster.h"

struct ranks;

/* Start n - 1 threads that follow, and join them as rank 0: *cluster is owned by the result. */
struct ranks *ranks_start(int n, lk_cluster **cluster);

/* End the cluster and its threads. Returns the first status other than LK_OK of a rank that
 * followed, with its message. */
lk_status ranks_end(struct ranks *ranks, lk_err *err);

/* The cluster of a rank: look at it only between operations. */
lk_cluster *ranks_cluster(struct ranks *ranks, int rank);

/* Let a rank be lost at its k-th exchange from now on. */
void ranks_lose(struct ranks *ranks, int rank, int k);

/* Send bytes as rank 0 does: a message that may be damaged. */
bool ranks_broadcast(struct ranks *ranks, void *data, size_t n);

#endif
