/* How many processors this process may use. */
#ifndef LK_BASE_CPUS_H
#define LK_BASE_CPUS_H

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

#endif
