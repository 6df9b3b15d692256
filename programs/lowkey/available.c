#include "available.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_ROOM = 4096 };

static FILE *open_below(const char *root, const char *folder, const char *name) {
    char path[PATH_ROOM];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
}

/* The number behind `key` at the beginning of a line, or with "" the file's only one; false: there is none, which
 * "max" is too. */
static bool read_number(const char *root, const char *folder, const char *name, const char *key,
                        uint64_t *out) {
    char line[256];
    unsigned long long number;
    bool found = false;
    size_t len = strlen(key);
    FILE *file = open_below(root, folder, name);
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, len) == 0 && sscanf(line + len, " %llu", &number) == 1;
    if (file) fclose(file);
    if (found) *out = number;
    return found;
}

/* Control groups of version 2, and of version 1 where the system still has these. */
struct group_kind {
    const char *top, *limit, *used, *cached;
};
static const struct group_kind unified = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                          "inactive_file "},
                               split = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                        "memory.usage_in_bytes", "total_inactive_file "};

static void take_least(uint64_t bytes, uint64_t *least) {
    if (bytes == 0) bytes = 1;
    if (*least == 0 || bytes < *least) *least = bytes;
}

static void read_group(const char *root, const struct group_kind *kind, const char *group,
                       uint64_t *least) {
    char folder[PATH_ROOM];
    uint64_t limit, used, cached = 0;
    int n = snprintf(folder, sizeof folder, "%s%s", kind->top, group);
    if (n < 0 || (size_t)n >= sizeof folder) return;
    if (!read_number(root, folder, kind->limit, "", &limit) ||
        !read_number(root, folder, kind->used, "", &used))
        return;
    if (limit >> 60) return; /* none, as version 1 says it */
    read_number(root, folder, "memory.stat", kind->cached,
                &cached); /* pages of files that go when others are wanted */
    used -= cached < used ? cached : used;
    take_least(limit > used ? limit - used : 0, least);
}

/* A group and all that it lies in: each may have a limit. Takes `group` apart. */
static void read_groups(const char *root, const struct group_kind *kind, char *group,
                        uint64_t *least) {
    group[strcspn(group, "\n")] = 0;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        read_group(root, kind, group, least);
    }
}

/* Is `word` one of those between commas in list[0..len)? */
static bool has_word(const char *list, size_t len, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list, *end = list + len; at < end; at++) {
        size_t here = strcspn(at, ",:");
        if (here == n && strncmp(at, word, n) == 0) return true;
        at += here;
    }
    return false;
}

uint64_t available_bytes(const char *root) {
    char line[PATH_ROOM];
    uint64_t least = 0, kib;
    if (read_number(root, "/proc", "meminfo", "MemAvailable:", &kib)) take_least(kib << 10, &least);
    FILE *file = open_below(root, "/proc/self", "cgroup");
    while (file && fgets(line, sizeof line,
                         file)) { /* NUMBER:CONTROLLERS:GROUP; version 2 names no controllers */
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        size_t len = (size_t)(group - ++controllers);
        if (len == 0)
            read_groups(root, &unified, group + 1, &least);
        else if (has_word(controllers, len, "memory"))
            read_groups(root, &split, group + 1, &least);
    }
    if (file) fclose(file);
    return least;
}
