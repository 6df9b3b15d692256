/* Groups of processors for ranks in one machine: one group for each memory node, or any number. */
#ifndef LK_LOWKEY_CPU_GROUPS_H
#define LK_LOWKEY_CPU_GROUPS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* cpu_set_t */
#endif

#include <sched.h>
#include <stdbool.h>

enum { MAX_CPU_GROUPS = 64 };

struct cpu_group {
    cpu_set_t cpus;
    int node; /* the memory node of all its processors; -1: several, or unknown */
};

/* Divide the processors of `allowed` into groups. n = 0: one for each memory node. n > 0: n groups
 * of about equal size. Processors of one node are next to each other in this division, so that a
 * group has processors of few nodes. `root`: prefix of /sys, "" except in tests. Returns the number
 * of groups; 0 if there are fewer processors than groups, or more nodes than MAX_CPU_GROUPS. */
int cpu_groups_make(const char *root, const cpu_set_t *allowed, int n,
                    struct cpu_group group[MAX_CPU_GROUPS]);

/* Let the calling thread, and threads that it starts from now on, run on the processors of the
 * group only, and use memory of its node as long as there is some. False if the system refuses the
 * processors. Memory of another node is slower, but no error. */
bool cpu_group_enter(const struct cpu_group *group);

#endif
