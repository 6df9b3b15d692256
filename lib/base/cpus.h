/* How many processors this process may use, and its control groups, which may limit them. */
#ifndef LK_BASE_CPUS_H
#define LK_BASE_CPUS_H

#include <stdbool.h>
#include <stddef.h>

struct lk_cpus {
    int online;   /* processors of the system */
    int allowed;  /* by the affinity mask: taskset, cpusets, docker --cpuset-cpus */
    double quota; /* processors' worth of time: the least quota of the control groups (docker
                     --cpus, systemd's CPUQuota=); 0: no quota */
};

/* `root`: prefix of /proc and /sys, "" except in tests. Never fails: what cannot be read does not
 * limit. */
struct lk_cpus lk_cpus_read(const char *root);

/* The default number of threads: as many as processors may be used, 1 to 16. A part of a processor
 * that a quota allows does not count, because threads wait for each other. */
int lk_cpus_threads(const struct lk_cpus *cpus);

/* ---- control groups ----
 *
 * The control groups of this process, version 1 and 2, and the files that say their limits. */

enum { LK_CGROUP_PATH = 4096 }; /* bytes of a longer path, which is not read */

/* One group. */
struct lk_cgroup {
    const char *root;            /* prefix of all paths */
    char folder[LK_CGROUP_PATH]; /* without the prefix */
    bool v2;
};

/* Call `fn` for the process's group of a version 1 `controller` ("cpu", "memory"), for its group of
 * version 2, and for all their parents: each may have a limit. `root`: prefix of /proc and /sys, ""
 * except in tests. */
void lk_cgroup_each(const char *root, const char *controller,
                    void (*fn)(void *user, const struct lk_cgroup *group), void *user);

/* Read up to two numbers of a file: from the line that starts with `key`, or from its first line if
 * `key` is "". Returns how many there are; a word such as "max" ends them. */
size_t lk_cgroup_numbers(const char *root, const char *folder, const char *name, const char *key,
                         long long number[2]);

#endif
