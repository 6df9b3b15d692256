/* Reads the number of processors from the system, the affinity mask and control groups. */
#include "base/cpus.h"

#include "base/os.h"

#include <stdio.h>
#include <string.h>

/* ---- control groups ----
 *
 * Finds the control groups of this process in /proc/self/cgroup, and reads numbers of their files.
 */

static FILE *open_in(const char *root, const char *folder, const char *name) {
    char path[LK_CGROUP_PATH];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
}

size_t lk_cgroup_numbers(const char *root, const char *folder, const char *name, const char *key,
                         long long number[2]) {
    char line[256];
    int n = 0;
    size_t len = strlen(key);
    FILE *file = open_in(root, folder, name);
    while (file && n <= 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, len) != 0) continue;
        n = sscanf(line + len, " %lld %lld", &number[0], &number[1]);
        if (len == 0) break;
    }
    if (file) fclose(file);
    return n > 0 ? (size_t)n : 0;
}

/* A group and its parents. Modifies `path`. */
static void walk_up(struct lk_cgroup *group, const char *top, char *path,
                    void (*fn)(void *user, const struct lk_cgroup *group), void *user) {
    path[strcspn(path, "\n")] = 0;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = 0;
        int n = snprintf(group->folder, sizeof group->folder, "%s%s", top, path);
        if (n > 0 && (size_t)n < sizeof group->folder) fn(user, group);
    }
}

/* True if the comma-separated list[0..len) contains `word`. */
static bool has_word(const char *list, size_t len, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list, *end = list + len; at < end; at++) {
        size_t n_item = strcspn(at, ",:");
        if (n_item == n && strncmp(at, word, n) == 0) return true;
        at += n_item;
    }
    return false;
}

void lk_cgroup_each(const char *root, const char *controller,
                    void (*fn)(void *user, const struct lk_cgroup *group), void *user) {
    char line[LK_CGROUP_PATH], top[64];
    FILE *file = open_in(root, "/proc/self", "cgroup");
    snprintf(top, sizeof top, "/sys/fs/cgroup/%s", controller);
    /* Lines are NUMBER:CONTROLLERS:GROUP. Version 2 has no controllers. */
    while (file && fgets(line, sizeof line, file)) {
        struct lk_cgroup group = {.root = root};
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        size_t len = (size_t)(path - ++controllers);
        group.v2 = len == 0;
        if (group.v2)
            walk_up(&group, "/sys/fs/cgroup", path + 1, fn, user);
        else if (has_word(controllers, len, controller))
            walk_up(&group, top, path + 1, fn, user);
    }
    if (file) fclose(file);
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
    cpus.online = lk_os_cpus_online();
    cpus.allowed = lk_os_cpus_allowed();
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
