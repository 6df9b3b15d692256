/* Reads free memory from /proc/meminfo and from control groups of version 1 and 2. */
#include "available.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

static FILE *open_in(const char *root, const char *folder, const char *name) {
    char path[MAX_PATH];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
}

/* Read the number after `key` at the start of a line, or a file's only number if `key` is "".
 * Returns false if there is none, for example for "max". */
static bool read_file_number(const char *root, const char *folder, const char *name,
                             const char *key, uint64_t *out) {
    char line[256];
    unsigned long long number;
    bool found = false;
    size_t len = strlen(key);
    FILE *file = open_in(root, folder, name);
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, len) == 0 && sscanf(line + len, " %llu", &number) == 1;
    if (file) fclose(file);
    if (found) *out = number;
    return found;
}

/* File names of control groups. */
struct cgroup_files {
    const char *top, *limit, *used, *cached;
};
static const struct cgroup_files cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                              "memory.usage_in_bytes", "total_inactive_file "};
static const struct cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                              "inactive_file "};

/* *min is 0 while nothing is known. */
static void update_min(uint64_t bytes, uint64_t *min) {
    if (bytes == 0) bytes = 1;
    if (*min == 0 || bytes < *min) *min = bytes;
}

static void read_cgroup(const char *root, const struct cgroup_files *files, const char *group,
                        uint64_t *min) {
    char folder[MAX_PATH];
    uint64_t limit, used, cached = 0;
    int n = snprintf(folder, sizeof folder, "%s%s", files->top, group);
    if (n < 0 || (size_t)n >= sizeof folder) return;
    if (!read_file_number(root, folder, files->limit, "", &limit) ||
        !read_file_number(root, folder, files->used, "", &used))
        return;
    if (limit >> 60) return; /* version 1 without a limit */
    /* Cached pages of files are reclaimed when memory is needed. */
    read_file_number(root, folder, "memory.stat", files->cached, &cached);
    used -= cached < used ? cached : used;
    update_min(limit > used ? limit - used : 0, min);
}

/* Read a group and its parents: each may have a limit. Modifies `group`. */
static void read_cgroups(const char *root, const struct cgroup_files *files, char *group,
                         uint64_t *min) {
    group[strcspn(group, "\n")] = 0;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        read_cgroup(root, files, group, min);
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

uint64_t available_bytes(const char *root) {
    char line[MAX_PATH];
    uint64_t min = 0, kib;
    if (read_file_number(root, "/proc", "meminfo", "MemAvailable:", &kib))
        update_min(kib << 10, &min);
    /* Lines are NUMBER:CONTROLLERS:GROUP. Version 2 has no controllers. */
    FILE *file = open_in(root, "/proc/self", "cgroup");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        size_t len = (size_t)(group - ++controllers);
        if (len == 0)
            read_cgroups(root, &cgroup_v2, group + 1, &min);
        else if (has_word(controllers, len, "memory"))
            read_cgroups(root, &cgroup_v1, group + 1, &min);
    }
    if (file) fclose(file);
    return min;
}
