/* Several processes that mpirun or srun has started together: rank 0 runs the command, the others
 * follow it (lowkey_cluster.h). Only ranks.c knows MPI; a program that was built without it is
 * always alone. */
#ifndef LK_LOWKEY_RANKS_H
#define LK_LOWKEY_RANKS_H

#include "args.h"
#include "lowkey_cluster.h"

struct ranks;

/* Join the processes that were started together with this one; *out is NULL if there are none.
 * Returns a STATUS_*, after printing an error. */
int ranks_join(struct ranks **out);

/* Run the command on rank 0. The other ranks follow, and print nothing but errors of their own.
 * NULL: run it in this process alone. Ends the ranks. Returns a STATUS_*. */
int ranks_run(struct ranks *ranks, const struct command *command, int argc, char **argv);

#endif
