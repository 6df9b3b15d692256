/* Memory that is free, from folders that look like proc and sys. */
#include "available.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define GIB ((uint64_t)1 << 30)

static char root[] = "/tmp/lowkey-available-XXXXXX";

/* Write a file below root, with the folders it lies in. */
static void put(const char *name, const char *text) {
    char path[200];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *end = path + strlen(root) + 1; (end = strchr(end, '/')); *end++ = '/') {
        *end = 0;
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void take_away(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s/proc %s/sys", root, root);
    assert_int_equal(system(command), 0);
}

static const char meminfo[] =
    "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n";

static void nothing_is_known(void **state) {
    (void)state;
    assert_int_equal(available_bytes(root), 0);
    put("/proc/meminfo", "MemTotal: 1024 kB\n");
    put("/proc/self/cgroup", "nonsense\n\n0::\n:memory");
    assert_int_equal(available_bytes(root), 0);
    take_away();
}

static void the_system_says(void **state) {
    (void)state;
    put("/proc/meminfo", meminfo);
    assert_true(available_bytes(root) == 32 * GIB);
    put("/proc/self/cgroup", "0::/user/one\n");
    put("/sys/fs/cgroup/user/one/memory.max", "max\n");
    put("/sys/fs/cgroup/user/one/memory.current", "1073741824\n");
    assert_true(available_bytes(root) == 32 * GIB);
    take_away();
}

static void groups_limit(void **state) {
    (void)state;
    put("/proc/meminfo", meminfo);
    put("/proc/self/cgroup", "1:name=systemd:/\n0::/user/one\n");
    put("/sys/fs/cgroup/user/one/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/user/one/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 5 * GIB);
    put("/sys/fs/cgroup/user/one/memory.stat",
        "anon 1\nfile 3221225471\nactive_file 2\ninactive_file 1073741824\n");
    assert_true(available_bytes(root) == 6 * GIB);
    put("/sys/fs/cgroup/user/memory.max", "4294967296\n"); /* of a group that holds this one */
    put("/sys/fs/cgroup/user/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 1 * GIB);
    put("/sys/fs/cgroup/memory.max", "3221225473\n"); /* a container's, seen from within */
    put("/sys/fs/cgroup/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 1);
    put("/sys/fs/cgroup/memory.max", "1024\n"); /* more is used than may be: known all the same */
    assert_true(available_bytes(root) == 1);
    take_away();
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/memory.current", "1073741824\n");
    assert_true(available_bytes(root) == 1 * GIB); /* without meminfo */
    take_away();
}

static void groups_of_version_1_limit(void **state) {
    (void)state;
    put("/proc/self/cgroup", "5:memory_too:/other\n4:cpu,memory:/one/two\n0::/\n");
    put("/sys/fs/cgroup/memory/one/two/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/sys/fs/cgroup/memory/one/two/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(available_bytes(root), 0);
    put("/proc/meminfo", meminfo);
    assert_true(available_bytes(root) == 32 * GIB);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n");
    assert_true(available_bytes(root) == 2 * GIB);
    put("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
    put("/sys/fs/cgroup/memory/other/memory.usage_in_bytes", "0\n");
    assert_true(available_bytes(root) == 2 * GIB);
    take_away();
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known), cmocka_unit_test(the_system_says),
        cmocka_unit_test(groups_limit), cmocka_unit_test(groups_of_version_1_limit)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    take_away();
    remove(root);
    return failed;
}
