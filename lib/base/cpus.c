/* Reads the number of processors from the system, the affinity mask and control groups. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "base/cpus.h"

#include "base/cgroup.h"

#include <sched.h>
#include <unistd.h>

/* Processors in the affinity mask, 0 if it cannot be read. The kernel refuses sets that are smaller
 * than its own. */
static int count_allowed(void) {
    enum { MIN_CPU = 1024, MAX_CPU = 1 << 16 };
    int n = 0;
    for (size_t size = MIN_CPU; n == 0 && size <= MAX_CPU; size *= 4) {
        cpu_set_t *set = CPU_ALLOC(size);
        if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(size), set) == 0)
            n = CPU_COUNT_S(CPU_ALLOC_SIZE(size), set);
        CPU_FREE(set);
    }
    return n;
}

/* Version 2: "max 100000" or "150000 100000". Version 1: a file each, and -1 for no quota. */
static void apply_quota(void *user, const struct lk_cgroup *group) {
    struct lk_cpus *cpus = user;
    long long number[2], period[2];
    size_t n;
    if (group->v2) {
        n = lk_cgroup_numbers(group->root, group->folder, "cpu.max", "", number);
        period[0] = n == 2 ? number[1] : 100000;
    } else {
        n = lk_cgroup_numbers(group->root, group->folder, "cpu.cfs_quota_us", "", number);
        if (!lk_cgroup_numbers(group->root, group->folder, "cpu.cfs_period_us", "", period))
            period[0] = 100000;
    }
    if (n == 0 || number[0] <= 0 || period[0] <= 0) return;
    double quota = (double)number[0] / (double)period[0];
    if (cpus->quota == 0.0 || quota < cpus->quota) cpus->quota = quota;
}

struct lk_cpus lk_cpus_read(const char *root) {
    struct lk_cpus cpus = {0};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpus.online = online > 0 ? (int)online : 1;
    cpus.allowed = count_allowed();
    if (cpus.allowed == 0) cpus.allowed = cpus.online;
    lk_cgroup_each(root, "cpu", apply_quota, &cpus);
    return cpus;
}

int lk_cpus_threads(const struct lk_cpus *cpus) {
    enum { MAX = 16 };
    int n = cpus->allowed;
    if (cpus->quota > 0.0 && cpus->quota < n) n = (int)cpus->quota;
    return n < 1 ? 1 : n > MAX ? MAX : n;
}
