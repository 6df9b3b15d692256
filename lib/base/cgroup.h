/* The control groups of this process, version 1 and 2, and the files that say their limits. */
#ifndef LK_BASE_CGROUP_H
#define LK_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

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
