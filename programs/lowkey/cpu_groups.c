/* Reads memory nodes from /sys/devices/system/node, and binds threads with system calls, so that
 * libnuma is not needed. */
#include "cpu_groups.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODE = 1024 };

/* Read a list like "0-15,32-47" of numbers below CPU_SETSIZE. An empty set if there is no file. */
static void read_list(const char *root, const char *file, cpu_set_t *out) {
    char path[256];
    int first, last;
    CPU_ZERO(out);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/%s", root, file);
    FILE *list = fopen(path, "r");
    if (!list) return;
    while (fscanf(list, "%d", &first) == 1 && first >= 0) {
        int next = fgetc(list);
        last = first;
        if (next == '-' && fscanf(list, "%d", &last) == 1) next = fgetc(list);
        for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, out);
        if (next != ',') break;
    }
    fclose(list);
}

/* The allowed processors by node; those of no known node are last. Returns their number. */
static int list_cpus(const char *root, const cpu_set_t *allowed, int cpu[CPU_SETSIZE],
                     int node[CPU_SETSIZE]) {
    cpu_set_t nodes, members, left = *allowed;
    int n = 0;
    read_list(root, "online", &nodes);
    for (int k = 0; k < MAX_NODE && k < CPU_SETSIZE; k++) {
        char file[64];
        if (!CPU_ISSET(k, &nodes)) continue;
        snprintf(file, sizeof file, "node%d/cpulist", k);
        read_list(root, file, &members);
        for (int i = 0; i < CPU_SETSIZE; i++) {
            if (!CPU_ISSET(i, &members) || !CPU_ISSET(i, &left)) continue;
            CPU_CLR(i, &left);
            cpu[n] = i;
            node[n++] = k;
        }
    }
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &left)) continue;
        cpu[n] = i;
        node[n++] = -1;
    }
    return n;
}

int cpu_groups_make(const char *root, const cpu_set_t *allowed, int n,
                    struct cpu_group group[MAX_CPU_GROUPS]) {
    int cpu[CPU_SETSIZE], node[CPU_SETSIZE], n_group = 0;
    int n_cpu = list_cpus(root, allowed, cpu, node);
    if (n > n_cpu || n > MAX_CPU_GROUPS || n_cpu == 0) return 0;
    for (int i = 0; i < n_cpu; i++) {
        bool starts = n == 0 ? i == 0 || node[i] != node[i - 1]
                             : i == 0 || (int64_t)i * n / n_cpu != (int64_t)(i - 1) * n / n_cpu;
        if (starts && n_group == MAX_CPU_GROUPS) return 0;
        if (starts) {
            CPU_ZERO(&group[n_group].cpus);
            group[n_group++].node = node[i];
        }
        struct cpu_group *g = &group[n_group - 1];
        CPU_SET(cpu[i], &g->cpus);
        if (g->node != node[i]) g->node = -1;
    }
    return n_group;
}

bool cpu_group_enter(const struct cpu_group *group) {
    enum { WORD = 8 * sizeof(unsigned long) };
    unsigned long nodes[MAX_NODE / WORD] = {0};
    if (sched_setaffinity(0, sizeof group->cpus, &group->cpus)) return false;
    if (group->node < 0) return true;
    nodes[(size_t)group->node / WORD] |= 1ul << ((size_t)group->node % WORD);
    syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, MAX_NODE + 1);
    return true;
}
