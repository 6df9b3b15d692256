/* Reads free memory from /proc/meminfo and from control groups of version 1 and 2. */
#include "available.h"

#include "base/cpus.h"
#include "base/os.h"

/* *min is 0 while nothing is known. */
static void update_min(uint64_t bytes, uint64_t *min) {
    if (bytes == 0) bytes = 1;
    if (*min == 0 || bytes < *min) *min = bytes;
}

static uint64_t read_group(const struct lk_cgroup *group, const char *name, const char *key) {
    long long number[2];
    if (lk_cgroup_numbers(group->root, group->folder, name, key, number) == 0) return 0;
    return number[0] > 0 ? (uint64_t)number[0] : 0;
}

static void apply_limit(void *user, const struct lk_cgroup *group) {
    uint64_t limit = read_group(group, group->v2 ? "memory.max" : "memory.limit_in_bytes", ""),
             used = read_group(group, group->v2 ? "memory.current" : "memory.usage_in_bytes", "");
    if (limit == 0 || limit >> 60) return; /* version 1 writes a large number if there is none */
    /* Cached pages of files are reclaimed when memory is needed. */
    uint64_t cached =
        read_group(group, "memory.stat", group->v2 ? "inactive_file " : "total_inactive_file ");
    used -= cached < used ? cached : used;
    update_min(limit > used ? limit - used : 0, user);
}

uint64_t available_bytes(const char *root) {
    uint64_t min = 0;
    long long kib[2];
    if (lk_cgroup_numbers(root, "/proc", "meminfo", "MemAvailable:", kib) && kib[0] >= 0)
        update_min((uint64_t)kib[0] << 10, &min);
    lk_cgroup_each(root, "memory", apply_limit, &min);
    uint64_t unused = *root ? 0 : lk_os_free_bytes();
    if (unused) update_min(unused, &min);
    return min;
}
